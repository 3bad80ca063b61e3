#pragma once
#include <cstdint>
#include <map>

#include "kernels/gemm/product.hpp"

namespace tessera::gemm {

/// How a product of codes is computed.
enum class Route : std::uint8_t {
  decoded,  ///< on factors decoded to bf16 first
  native,   ///< by units that multiply the codes: FP8 block on Hopper's tensor cores
};

/// The route of a product of codes. It follows from formats, form and shape alone, so that equal products take equal
/// routes whatever the overlap, and a plan can predict it. A GPU build on a machine without a GPU plans for the
/// processor it is built for.
Route route_of(const Product& product);
/// Whether some product takes the native route whose factor a has this format. Where none does, a factor that is made
/// for products alone need not be codes: make_factors().
bool multiplies_codes(FormatId a);

/// CUDA builds only: compute capability times ten, of the GPU at hand; without a GPU, the first that this build is for.
int processor();

/// A stream's library state (Stream::library): the products of codes that a dry stream met.
struct Routes {
  std::map<Product, Route> of;
};

}  // namespace tessera::gemm
