#include "tests/reference/balance.hpp"

namespace tessera::reference {

void balance_step(std::span<float> bias, std::span<const float> count, float rate, double slots,
                  const ClipResult& clip) {
  if (clip.skip != 0) return;
  for (std::size_t e = 0; e < bias.size(); ++e) {
    const double above = static_cast<double>(count[e]) * static_cast<double>(bias.size()) - slots;
    const float sign = above < 0 ? 1.0f : above > 0 ? -1.0f : 0.0f;
    bias[e] = bias[e] + rate * sign;
  }
}

}  // namespace tessera::reference
