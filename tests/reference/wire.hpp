#pragma once
#include <span>
#include <vector>

#include "kernels/reduce/wire.hpp"

namespace tessera::reference {

/// What finite gradients contribute to a sum on a wire, by its definition, in double. Whole blocks.
std::vector<float> on_wire(GradientWire wire, std::span<const float> gradients);

}  // namespace tessera::reference
