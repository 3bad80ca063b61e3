#include "tests/reference/adamw.hpp"

#include <cmath>

namespace tessera::reference {

void adamw_advance(const AdamWCoefficients& coefficients, AdamWClock& clock, const ClipResult& clip) {
  if (clip.skip != 0) return;
  clock = {clock.t + 1, clock.beta1_power * coefficients.beta1, clock.beta2_power * coefficients.beta2};
}

template <class M>
void adamw_step(const AdamWCoefficients& coefficients, float weight_decay, std::span<float> master, std::span<M> m,
                std::span<M> v, std::span<const float> gradient, const AdamWClock& clock, const ClipResult& clip,
                float rate) {
  if (clip.skip != 0) return;
  const auto b1 = static_cast<float>(coefficients.beta1), b2 = static_cast<float>(coefficients.beta2),
             eps = static_cast<float>(coefficients.eps);
  const auto c1 = static_cast<float>(1 - clock.beta1_power), c2 = static_cast<float>(1 - clock.beta2_power);
  for (std::size_t i = 0; i < master.size(); ++i) {
    const float g = clip.coefficient * gradient[i];
    const float mean = b1 * float(m[i]) + (1 - b1) * g;
    const float square = b2 * float(v[i]) + (1 - b2) * (g * g);
    const float direction = (mean / c1) / (std::sqrt(square / c2) + eps);
    master[i] = master[i] - rate * (direction + weight_decay * master[i]);
    m[i] = M(mean);
    v[i] = M(square);
  }
}

template void adamw_step(const AdamWCoefficients&, float, std::span<float>, std::span<float>, std::span<float>,
                         std::span<const float>, const AdamWClock&, const ClipResult&, float);
template void adamw_step(const AdamWCoefficients&, float, std::span<float>, std::span<bf16>, std::span<bf16>,
                         std::span<const float>, const AdamWClock&, const ClipResult&, float);

}  // namespace tessera::reference
