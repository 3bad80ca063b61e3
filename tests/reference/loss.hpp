#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace tessera::reference {

struct CrossEntropy {
  double sum = 0;  ///< over rows of -log softmax(logits)[target]; rows without a target are left out
  std::vector<double> dlogits;
};
/// logits [M, padded]; the first `vocabulary` columns take part, the others have gradient 0.
CrossEntropy cross_entropy(std::span<const double> logits, std::span<const std::int32_t> targets,
                           std::size_t vocabulary, double scale);

}  // namespace tessera::reference
