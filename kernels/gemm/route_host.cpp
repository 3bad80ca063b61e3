#include "kernels/gemm/route.hpp"

namespace tessera::gemm {

Route route_of(const Product&) { return Route::decoded; }
bool native_pair(Form, FormatId, FormatId) { return false; }

}  // namespace tessera::gemm
