// What a build without GPUs answers where back ends have a choice: there is no faster version than the portable kernel.
#include "kernels/activation/back.hpp"
#include "kernels/attention/back.hpp"
#include "kernels/base/gpu_libraries.hpp"
#include "kernels/convert/back.hpp"
#include "kernels/embedding/back.hpp"
#include "kernels/gemm/native.hpp"
#include "kernels/loss/back.hpp"
#include "kernels/moe/back.hpp"
#include "kernels/normalize/back.hpp"
#include "kernels/optim/back.hpp"
#include "kernels/reduce/back.hpp"

namespace tessera::activation {

bool gelu_forward(Stream&, const Tensor&, const Tensor&, const Tensor&) { return false; }
bool gelu_backward(Stream&, const Tensor&, const Tensor&, const Tensor&, const Tensor&) { return false; }
bool swiglu_forward(Stream&, const Tensor&, const Tensor&, const Tensor&) { return false; }
bool swiglu_backward(Stream&, const Tensor&, const Tensor&, const Tensor&, const Tensor&) { return false; }

}  // namespace tessera::activation

namespace tessera::attention {

bool rotary(Stream&, const AttentionShape&, const Tensor&, const Tensor&, float, const Tensor&) { return false; }

}  // namespace tessera::attention

namespace tessera::convert_table {

bool convert_pairs(Stream&, const ConvertTable&, int, int) { return false; }

}  // namespace tessera::convert_table

namespace tessera::embedding {

bool forward(Stream&, const Tensor&, const Tensor&, const Tensor&, const Tensor&) { return false; }
bool token_gradient(Stream&, const Gradient&, const Tensor&, const Tensor&, const Tensor&) { return false; }
bool position_gradient(Stream&, const Gradient&, const Tensor&) { return false; }

}  // namespace tessera::embedding

namespace tessera::gemm {

namespace {

struct NoUnits final : NativeLibrary {
  Standing standing(const Kind&) const override { return Standing::none; }
  bool multiply(Stream&, const Product&, const Addresses&) override {
    refuse("product of codes", "a host has no units that multiply codes");
  }
};

}  // namespace

NativeLibrary& own_library() {
  static NoUnits none;
  return none;
}

}  // namespace tessera::gemm

namespace tessera::loss {

bool row_losses(Stream&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, std::int64_t, const Tensor&) {
  return false;
}
bool add_losses(Stream&, double*, const Tensor&) { return false; }

}  // namespace tessera::loss

namespace tessera::moe {

bool choose_experts(Stream&, const RouterShape&, const Routing&, const Tensor&, const Tensor&) { return false; }
bool count_load(Stream&, const RouterShape&, const Routing&) { return false; }
bool gather_rows(Stream&, const Tensor&, const Tensor&, const Routing&) { return false; }
bool send_rows(Stream&, const Tensor&, const Tensor&, const Tensor&, const Routing&, const PeerRows&) { return false; }
bool sum_slots(Stream&, const Tensor&, const Tensor&, const SlotSum&, const Routing&) { return false; }
bool combine_backward(Stream&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Routing&) {
  return false;
}
bool router_forward(Stream&, const Tensor&, const Tensor&, const Tensor&) { return false; }
bool router_input_gradient(Stream&, const Tensor&, const Tensor&, const Tensor&) { return false; }
bool router_weight_partials(Stream&, const Tensor&, const Tensor&, const Tensor&) { return false; }

}  // namespace tessera::moe

namespace tessera::normalize {

bool forward(Stream&, Norm, const NormForward&) { return false; }
bool backward(Stream&, Norm, const NormBackward&) { return false; }
bool gradients(Stream&, Norm, const Gradient&, const Gradient&, const NormBackward&, const Tensor&, const Tensor&) {
  return false;
}

}  // namespace tessera::normalize

namespace tessera::optim {

bool adamw_step(Stream&, const AdamWStep&) { return false; }

}  // namespace tessera::optim

namespace tessera::reduce {

bool add_squares(Stream&, const Tensor&, std::span<const Tensor>) { return false; }
bool sum_in_order(Stream&, const Tensor&, const SumTerms&) { return false; }
bool add_in_order(Stream&, const Tensor&, const SumTerms&) { return false; }
bool encode_gradients(Stream&, GradientWire, const Tensor&, const WireArray&) { return false; }

}  // namespace tessera::reduce

namespace tessera {

std::vector<LibraryVersion> gpu_libraries() { return {}; }

}  // namespace tessera
