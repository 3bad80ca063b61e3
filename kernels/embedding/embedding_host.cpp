// The host has no faster versions than the portable kernels.
#include "kernels/embedding/back.hpp"

namespace tessera::embedding {

bool forward(Stream&, const Tensor&, const Tensor&, const Tensor&, const Tensor&) { return false; }
bool token_gradient(Stream&, const Gradient&, const Tensor&, const Tensor&, const Tensor&) { return false; }
bool position_gradient(Stream&, const Gradient&, const Tensor&) { return false; }

}  // namespace tessera::embedding
