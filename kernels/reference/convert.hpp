#pragma once
#include "kernels/base/dtype.hpp"

namespace tessera::reference {

/// The bf16 nearest to x, of two equally near the one with an even significand, found by comparing distances; infinite
/// from half a unit above the largest finite one.
bf16 nearest_bf16(float x);

}  // namespace tessera::reference
