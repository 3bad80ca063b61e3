// The host has no faster version: the portable kernel is vectorised as it is.
#include "kernels/optim/back.hpp"

namespace tessera::optim {

bool adamw_step(Stream&, const AdamWStep&) { return false; }

}  // namespace tessera::optim
