#pragma once
#include <cstdint>
#include <map>

#include "kernels/gemm/product.hpp"

namespace tessera::gemm {

/// How a product of codes is computed.
enum class Route : std::uint8_t {
  decoded,  ///< factors are decoded to bf16 first
  native,   ///< tensor cores multiply the codes: FP8 with blocks' or a tensor's scales on Hopper
};

/// The route of a product of codes. It depends on formats, form and shape alone, so that equal products take equal
/// routes with or without overlap, and a plan can predict it. A GPU build on a machine without a GPU plans for the GPU
/// that it is built for.
Route route_of(const Product& product);
/// Whether products of this form take the native route for factors of these formats, in some shapes at least. If none
/// do, activations and gradients are fake-quantized (make_factors()) instead of stored as codes.
bool native_pair(Form form, FormatId a, FormatId b);

/// CUDA builds only: compute capability times ten of the present GPU; without a GPU, of the first that this build is
/// for.
int processor();

/// The products of codes that a dry stream has met, with their routes: state of a stream (Stream::library).
struct Routes {
  std::map<Product, Route> of;
};

}  // namespace tessera::gemm
