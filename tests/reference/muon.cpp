#include "tests/reference/muon.hpp"

namespace tessera::reference {

template <class M>
void muon_momentum(const MuonMomentum& momentum, std::span<M> m, std::span<float> gradient, const ClipResult& clip) {
  if (clip.skip != 0) return;
  const auto mu = static_cast<float>(momentum.decay);
  for (std::size_t i = 0; i < m.size(); ++i) {
    const float g = clip.coefficient * gradient[i];
    const float mean = mu * float(m[i]) + (1 - mu) * g;
    m[i] = M(mean);
    gradient[i] = momentum.nesterov ? mu * mean + (1 - mu) * g : mean;
  }
}

void muon_update(double weight_decay, double scale, std::span<float> master, std::span<const float> orthogonal,
                 const ClipResult& clip, float rate) {
  if (clip.skip != 0) return;
  for (std::size_t i = 0; i < master.size(); ++i) {
    const float kept = master[i] * (1 - rate * static_cast<float>(weight_decay));
    master[i] = kept - (rate * static_cast<float>(scale)) * orthogonal[i];
  }
}

template void muon_momentum(const MuonMomentum&, std::span<float>, std::span<float>, const ClipResult&);
template void muon_momentum(const MuonMomentum&, std::span<bf16>, std::span<float>, const ClipResult&);

}  // namespace tessera::reference
