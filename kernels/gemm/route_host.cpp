#include "kernels/gemm/route.hpp"

namespace tessera::gemm {

Route route_of(const Product&) { return Route::decoded; }
bool multiplies_codes(FormatId) { return false; }

}  // namespace tessera::gemm
