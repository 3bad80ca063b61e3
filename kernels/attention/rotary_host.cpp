// The host has no faster version: the portable kernel is vectorised as it is.
#include "kernels/attention/back.hpp"

namespace tessera::attention {

bool rotary(Stream&, const AttentionShape&, const Tensor&, const Tensor&, float) { return false; }

}  // namespace tessera::attention
