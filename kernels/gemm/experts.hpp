#pragma once
// CUDA builds only: products of experts.
#include "kernels/base/stream.hpp"
#include "kernels/gemm/product.hpp"

namespace tessera::gemm {

/// multiply() of back.hpp, for products with experts.
void multiply_experts(Stream& stream, const Product& product, const Addresses& places);

/// multiply_experts() on Hopper's tensor cores: bf16, sides in multiples of 8, no epilogue, no alpha. Returns false,
/// with nothing done, for other products. A dry stream notes the workspace. Only builds with CUTLASS for sm_90 have it.
bool multiply_grouped(Stream& stream, const Product& product, const Addresses& places);

/// multiply_experts() for FP8 blocks (fp8_block_1d times fp8_block; weight gradients: fp8_block_1d twice) on Hopper's
/// tensor cores: sides in multiples of 8, the summed one of 16, no epilogue. Offsets of weight gradients in multiples
/// of 128. Only builds with CUTLASS for sm_90 have it; route_of() knows whether this one does.
void multiply_grouped_blocks(Stream& stream, const Product& product, const Addresses& places);

/// The same for FP8 codes with one scale each (fp8_tensor; fp8_tensor_e5m2 for a), a part of alpha; offsets of
/// weight gradients in multiples of 16.
void multiply_grouped_tensors(Stream& stream, const Product& product, const Addresses& places);

}  // namespace tessera::gemm
