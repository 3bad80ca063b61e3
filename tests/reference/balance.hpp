#pragma once
#include <span>

#include "kernels/optim/balance.hpp"

namespace tessera::reference {

/// balance_step() of the selection biases of one router of bias.size() experts, bit for bit.
void balance_step(std::span<float> bias, std::span<const float> count, float rate, double slots,
                  const ClipResult& clip);

}  // namespace tessera::reference
