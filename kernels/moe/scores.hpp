#pragma once
#include <cstdint>

#include "kernels/base/dtype.hpp"

namespace tessera {

/// What a router makes of its logits: probabilities of all experts together, or a score of each expert by itself.
enum class Scores { softmax, sigmoid };

/// How a router chooses and weights experts by their logits, besides their number. The defaults are Mixtral's.
struct ScoreRule {
  Scores scores = Scores::softmax;
  DType logits = DType::f32;  ///< bf16: logits are rounded to it first; else they are taken as they are
  double scale = 1;           ///< of the weights of the chosen experts, after all else
  /// Experts lie in `groups` of equal size, neighbours together. Only those of the top_groups groups whose two highest
  /// scores have the largest sums are chosen.
  std::int64_t groups = 1, top_groups = 1;
};

}  // namespace tessera
