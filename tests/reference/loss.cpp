#include "tests/reference/loss.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/loss/loss.hpp"

namespace tessera::reference {

CrossEntropy cross_entropy(std::span<const double> logits, std::span<const std::int32_t> targets,
                           std::size_t vocabulary, double scale) {
  CrossEntropy out{0, std::vector<double>(logits.size())};
  const std::size_t padded = targets.empty() ? 0 : logits.size() / targets.size();
  for (std::size_t m = 0; m < targets.size(); ++m) {
    if (targets[m] == no_target) continue;
    const auto row = logits.subspan(m * padded, vocabulary);
    const auto target = static_cast<std::size_t>(targets[m]);
    const double top = *std::max_element(row.begin(), row.end());
    double sum = 0;
    for (double z : row) sum += std::exp(z - top);
    out.sum += top + std::log(sum) - row[target];
    for (std::size_t j = 0; j < vocabulary; ++j)
      out.dlogits[m * padded + j] = scale * (std::exp(row[j] - top) / sum - (j == target ? 1 : 0));
  }
  return out;
}

}  // namespace tessera::reference
