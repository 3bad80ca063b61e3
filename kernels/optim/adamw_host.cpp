// The host has no faster version than the portable kernel.
#include "kernels/optim/back.hpp"

namespace tessera::optim {

bool adamw_step(Stream&, const AdamWStep&) { return false; }

}  // namespace tessera::optim
