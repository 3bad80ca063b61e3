// On the host the portable kernel is the fast one.
#include "kernels/attention/back.hpp"

namespace tessera::attention {

bool rotary(Stream&, const AttentionShape&, const Tensor&, const Tensor&, float) { return false; }

}  // namespace tessera::attention
