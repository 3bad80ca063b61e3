#pragma once
#include "kernels/base/dtype.hpp"

namespace tessera::gemm {

/// Whether this machine has instructions for products of `type`. Without them a product runs in fp32, no faster than a
/// product of fp32. Local.
bool has_instructions(DType type);

}  // namespace tessera::gemm
