#pragma once
#include "core/model/layers/linear.hpp"
#include "core/model/shape.hpp"
#include "kernels/attention/attention.hpp"

namespace tessera {

/// y = causal attention over one projection of x to queries, keys and values, and a projection back; [M,C] to [M,C].
class Attention {
 public:
  struct Saved {
    Tensor qkv;         ///< [M, (H + 2G) D], rotated where positions are rotary
    Tensor lse;         ///< [sequences, H, T]
    Linear::Saved out;  ///< [M, H D], of the projection back
  };

  /// Registers `name`.qkv and `name`.out.
  Attention(ParamRegistry& registry, const std::string& name, const GptShape& shape);

  Saved place(Arena& arena, std::int64_t tokens) const;
  void forward(const Call& call, const Tensor& x, const Saved& saved, const Tensor& y = {}) const;
  void backward(const Call& call, const Tensor& dx, const Tensor& dy, const Tensor& x, const Saved& saved) const;

 private:
  AttentionShape shape_of(std::int64_t tokens) const;

  AttentionShape one_;  ///< of one sequence
  DType type_, sum_type_;
  Linear qkv_, out_;
};

}  // namespace tessera
