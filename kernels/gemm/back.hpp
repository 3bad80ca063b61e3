#pragma once
#include "kernels/base/stream.hpp"
#include "kernels/gemm/product.hpp"

/// What a back end provides behind the functions of gemm.hpp. gemm_host.cpp asks the host's libraries, gemm_cuda.cu
/// cuBLASLt and kernels of the project's own.
namespace tessera::gemm {

/// Computes a product whose places have been checked and which has work to do: at least one row (of experts' weight
/// gradients any number). On a dry stream it notes what will be needed (Stream::workspace, LibraryChoices) and returns.
/// False, with nothing done, where the back end has no such epilogue in one product: of gelu and dgelu alone.
bool multiply(Stream& stream, const Product& product, const Places& places);

/// db = beta db + column sums of dy, which has rows.
void bias_gradient(Stream& stream, const Gradient& db, const Tensor& dy);

/// sum = beta sum, for a product that has no rows to add.
void scale(Stream& stream, const Gradient& sum);

}  // namespace tessera::gemm
