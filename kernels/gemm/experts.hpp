#pragma once
// CUDA builds only: products of experts.
#include "kernels/base/stream.hpp"
#include "kernels/gemm/product.hpp"

namespace tessera::gemm {

/// As multiply() of back.hpp, for products with experts.
void multiply_experts(Stream& stream, const Product& product, const Places& places);

/// As multiply_experts(), on Hopper's tensor cores: bf16, sides in multiples of 8, no epilogue and no alpha. False,
/// with nothing done, for any other. A dry stream notes the workspace. Builds with CUTLASS for sm_90 alone have it.
bool multiply_grouped(Stream& stream, const Product& product, const Places& places);

/// As multiply_experts(), of FP8 blocks (fp8_block_1d times fp8_block, or itself in weight gradients) on Hopper's
/// tensor cores: sides in multiples of 8, the summed one of 16, no epilogue; of weight gradients offsets in multiples
/// of 128. Builds with CUTLASS for sm_90 alone have it: route_of() knows.
void multiply_grouped_blocks(Stream& stream, const Product& product, const Places& places);

}  // namespace tessera::gemm
