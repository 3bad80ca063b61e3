#include "kernels/base/product_isa.hpp"

namespace tessera {

std::string product_isa() { return ""; }

}  // namespace tessera
