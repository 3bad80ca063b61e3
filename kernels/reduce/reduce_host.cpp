// On the host the portable kernel is the fast one.
#include "kernels/reduce/back.hpp"

namespace tessera::reduce {

bool add_squares(Stream&, const Tensor&, std::span<const Tensor>) { return false; }

}  // namespace tessera::reduce
