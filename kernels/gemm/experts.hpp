#pragma once
// CUDA builds only: products of experts.
#include "kernels/base/stream.hpp"
#include "kernels/gemm/product.hpp"

namespace tessera::gemm {

/// As multiply() of back.hpp, for products with experts.
void multiply_experts(Stream& stream, const Product& product, const Places& places);

}  // namespace tessera::gemm
