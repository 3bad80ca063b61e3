#include "kernels/gemm/route.hpp"

namespace tessera::gemm {

Route route_of(const Product&) { return Route::decoded; }

}  // namespace tessera::gemm
