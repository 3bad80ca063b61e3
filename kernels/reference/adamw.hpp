#pragma once
#include <span>

#include "kernels/optim/adamw.hpp"

namespace tessera::reference {

void adamw_advance(AdamWClock& clock, const ClipResult& clip, double beta1, double beta2);

/// One AdamW update in fp32, bit for bit what adamw_step does. M, the moments' type, is float or bf16.
template <class M>
void adamw_step(const AdamWRule& rule, std::span<float> master, std::span<M> m, std::span<M> v,
                std::span<const float> gradient, const AdamWClock& clock, const ClipResult& clip, float rate);

}  // namespace tessera::reference
