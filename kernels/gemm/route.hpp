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

/// The route of a product of codes: by its formats, form and shape alone, so that equal products take equal routes
/// whatever the overlap, and a plan knows them. A GPU build without a GPU plans for the processor that it is built for.
Route route_of(const Product& product);

/// CUDA builds: compute capability, ten times, of the GPU at hand; of the first that this build is for where there is
/// none.
int processor();

/// A stream's library state (Stream::library): the products of codes that a dry stream met.
struct Routes {
  std::map<Product, Route> of;
};

}  // namespace tessera::gemm
