// The host has no faster version than the portable kernel.
#include "kernels/attention/back.hpp"

namespace tessera::attention {

bool rotary(Stream&, const AttentionShape&, const Tensor&, const Tensor&, float, const Tensor&) { return false; }

}  // namespace tessera::attention
