#pragma once
#include <span>

#include "kernels/optim/muon.hpp"

namespace tessera::reference {

/// muon_momentum() and muon_update() of one part, bit for bit. M, the momentum's type, is float or bf16.
template <class M>
void muon_momentum(const MuonMomentum& momentum, std::span<M> m, std::span<float> gradient, const ClipResult& clip);
void muon_update(double weight_decay, double scale, std::span<float> master, std::span<const float> orthogonal,
                 const ClipResult& clip, float rate);

}  // namespace tessera::reference
