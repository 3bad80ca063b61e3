#pragma once
#include "core/model/layers/call.hpp"
#include "core/model/layers/parameter.hpp"
#include "core/model/shape.hpp"

namespace tessera {

/// x = tok[id], plus pos[t] where positions are learned.
class Embedding {
 public:
  /// Registers embed.tokens and, for learned positions, embed.positions.
  Embedding(ParamRegistry& registry, const GptShape& shape);

  /// x [M,C], ids i32 [M].
  void forward(const Call& call, const Tensor& x, const Tensor& ids) const;
  /// Adds to the gradients, tokens in ascending order.
  void backward(const Call& call, const Tensor& dx, const Tensor& ids) const;

  ParamId tokens() const { return tokens_; }

 private:
  ParamId tokens_;
  std::optional<ParamId> positions_;
};

/// A matrix [V,C] whose rows are padded in memory only.
ParamId add_vocabulary(ParamRegistry& registry, const std::string& name, const GptShape& shape, Role role);

}  // namespace tessera
