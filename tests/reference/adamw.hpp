#pragma once
#include <span>

#include "kernels/optim/adamw.hpp"

namespace tessera::reference {

void adamw_advance(const AdamWCoefficients& coefficients, AdamWClock& clock, const ClipResult& clip);

/// adamw_step() of one run, bit for bit, in fp32, by a clock that has been advanced. M, the moments' type, is float or
/// bf16.
template <class M>
void adamw_step(const AdamWCoefficients& coefficients, float weight_decay, std::span<float> master, std::span<M> m,
                std::span<M> v, std::span<const float> gradient, const AdamWClock& clock, const ClipResult& clip,
                float rate);

}  // namespace tessera::reference
