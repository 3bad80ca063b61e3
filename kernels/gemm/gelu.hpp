#pragma once
// Dense products with a fused gelu. CUDA builds with CUTLASS for sm_90 only.
#include "kernels/base/stream.hpp"
#include "kernels/gemm/product.hpp"

namespace tessera::gemm {

/// A product in bf16 with epilogue gelu or bias_gelu (forward) or dgelu (input gradient), on Hopper's tensor cores. It
/// needs beta 0, n and k in multiples of 8, every place at a multiple of 16 bytes.
void multiply_gelu(Stream& stream, const Product& product, const Addresses& places);

}  // namespace tessera::gemm
