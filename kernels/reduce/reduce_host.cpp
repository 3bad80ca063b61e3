// The host has no faster version: the portable kernel is vectorised as it is.
#include "kernels/reduce/back.hpp"

namespace tessera::reduce {

bool add_squares(Stream&, const Tensor&, std::span<const Tensor>) { return false; }

}  // namespace tessera::reduce
