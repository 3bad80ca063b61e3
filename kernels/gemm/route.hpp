#pragma once
#include <cstdint>
#include <map>

#include "kernels/base/stream.hpp"
#include "kernels/gemm/product.hpp"

namespace tessera::gemm {

/// How a product of codes is computed.
enum class Route : std::uint8_t {
  decoded,  ///< factors are decoded to bf16 first
  native,   ///< tensor cores multiply the codes: FP8 with blocks' or a tensor's scales on Hopper, those and blocks of
            ///< MXFP8 and NVFP4 on Blackwell (native.hpp)
};

/// The route of a product of codes. It depends on formats, form and shape alone, and on what the process has given up
/// at its start. So equal products take equal routes with or without overlap, and a plan can predict them. A GPU build
/// on a machine without a GPU plans for the first GPU that it is built for.
Route route_of(const Product& product);
/// Whether products of this form take the native route for factors of these formats, in some shapes at least. If none
/// do, activations and gradients are fake-quantized (make_factors()) instead of stored as codes.
bool native_pair(Form form, FormatId a, FormatId b);

/// Computes a product whose places have been checked, one of codes by that route. Returns false, with nothing done, if
/// one product cannot have its epilogue.
bool multiply_by(Stream& stream, Route route, Product product, Addresses places);

/// CUDA builds only: compute capability times ten of the present GPU; without a GPU, of the first that this build is
/// for.
int processor();

/// The products of codes that a dry stream has met, with their routes: state of a stream (Stream::library).
struct Routes {
  std::map<Product, Route> of;
};

}  // namespace tessera::gemm
