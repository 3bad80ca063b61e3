#pragma once
#include "kernels/base/dtype.hpp"

namespace tessera::reference {

/// The bf16 nearest to x, found by comparing distances; of two equally near the one with an even significand. Infinite
/// from half a unit above the largest finite bf16.
bf16 nearest_bf16(float x);

}  // namespace tessera::reference
