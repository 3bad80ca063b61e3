#pragma once
#include <vector>

#include "core/model/layers/call.hpp"
#include "core/model/layers/parameter.hpp"
#include "core/model/shape.hpp"

namespace tessera {

struct ExpertsShape {
  std::int64_t experts = 0, in = 0, out = 0;
  double deviation = initial_deviation;
  ExpertWeights weights = ExpertWeights::single;
  Accumulation accumulation = Accumulation::fused;
  Shape parts = {};  ///< of one expert, as in ParamSpec
};

/// One projection of E experts, y = x W_e^T over rows sorted by expert: one grouped parameter (single) or E (discrete),
/// with the same members in the same order, and the same bits.
class Experts {
 public:
  /// All that backward needs besides the offsets.
  struct Saved {
    Tensor x;  ///< [S,in]
  };

  /// Registers `name`.`projection`.weight with E members, or `name`.<e>.`projection`.weight for each expert, which are
  /// parts of that dataset.
  Experts(ParamRegistry& registry, const std::string& name, const std::string& projection, const ExpertsShape& shape);

  /// Rows of expert e are [offsets[e], offsets[e+1]).
  void forward(const Call& call, const Tensor& y, const Tensor& x, const Tensor& offsets) const;
  void backward(const Call& call, const Tensor& dx, const Tensor& dy, const Saved& saved, const Tensor& offsets) const;

 private:
  /// Calls `f` with an operand for each parameter, all in use.
  template <class F>
  void with_operands(const Call& call, Side side, const F& f) const;

  Shape member_;
  Accumulation accumulation_;
  std::vector<ParamId> weights_;  ///< one, or E
};

}  // namespace tessera
