// The host has no faster versions than the portable kernels.
#include "kernels/normalize/back.hpp"

namespace tessera::normalize {

bool forward(Stream&, Norm, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
             const Tensor&, const Tensor&, double) {
  return false;
}
bool backward(Stream&, Norm, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
              const Tensor&) {
  return false;
}
bool gradients(Stream&, Norm, const Tensor&, const Gradient&, const Gradient&, const Tensor&, const Tensor&,
               const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&) {
  return false;
}

}  // namespace tessera::normalize
