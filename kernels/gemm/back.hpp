#pragma once
#include "kernels/base/stream.hpp"
#include "kernels/gemm/product.hpp"

/// The interface that each back end implements behind gemm.hpp: gemm_host.cpp with the host's libraries, gemm_cuda.cu
/// with cuBLASLt and kernels of the project's own.
namespace tessera::gemm {

/// Computes a product whose places have been checked and which has rows to multiply (experts' weight gradients may have
/// none). On a dry stream it only notes what will be needed (Stream::workspace, LibraryChoices). Returns false, with
/// nothing done, if the back end cannot fuse the epilogue: gelu, bias_gelu and dgelu only.
bool multiply(Stream& stream, const Product& product, const Addresses& places);

/// db = beta db + column sums of dy, which has rows.
void bias_gradient(Stream& stream, const Gradient& db, const Tensor& dy);

/// sum = beta sum, for a product that has no rows to add.
void scale(Stream& stream, const Gradient& sum);

}  // namespace tessera::gemm
