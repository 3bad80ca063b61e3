#pragma once
#include "kernels/base/dtype.hpp"

namespace tessera::gemm {

/// Whether this machine has instructions for products of `type`. Without them a product is computed in fp32, no faster
/// than one of fp32. Local.
bool has_instructions(DType type);

}  // namespace tessera::gemm
