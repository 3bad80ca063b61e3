// The host has no faster versions than the portable kernels.
#include "kernels/moe/back.hpp"

namespace tessera::moe {

bool choose_experts(Stream&, const RouterShape&, const Routing&, const Tensor&, const Tensor&) { return false; }
bool count_load(Stream&, const RouterShape&, const Routing&) { return false; }
bool gather_rows(Stream&, const Tensor&, const Tensor&, const Routing&) { return false; }
bool sum_slots(Stream&, const Tensor&, const Tensor&, const SlotSum&, const Routing&) { return false; }
bool combine_backward(Stream&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Routing&) {
  return false;
}
bool router_forward(Stream&, const Tensor&, const Tensor&, const Tensor&) { return false; }
bool router_input_gradient(Stream&, const Tensor&, const Tensor&, const Tensor&) { return false; }
bool router_weight_partials(Stream&, const Tensor&, const Tensor&, const Tensor&) { return false; }

}  // namespace tessera::moe
