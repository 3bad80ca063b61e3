#pragma once
#include <span>

#include "kernels/optim/average.hpp"

namespace tessera::reference {

/// average_step(), bit for bit.
void average_step(std::span<float> average, std::span<const float> master, float rate, const ClipResult& clip);

}  // namespace tessera::reference
