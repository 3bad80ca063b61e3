#pragma once
#include "core/config/choices.hpp"
#include "kernels/activation/activation.hpp"

namespace tessera {

/// The projection that an activation reads: its name, and its width for an output of width F.
constexpr const char* inner_name(Activation kind) { return kind == Activation::swiglu ? "gate_up" : "up"; }
constexpr std::int64_t inner_width(Activation kind, std::int64_t ffn) {
  return kind == Activation::swiglu ? 2 * ffn : ffn;
}

/// Rows of the matrices that are fused into that projection, as ParamSpec has them: gate and up.
constexpr Shape inner_parts(Activation kind, std::int64_t ffn) {
  return kind == Activation::swiglu ? Shape{ffn, ffn} : Shape();
}

/// y [M,F] from pre [M, inner_width].
inline void activate(Stream& stream, Activation kind, const Tensor& y, const Tensor& pre) {
  kind == Activation::swiglu ? swiglu_forward(stream, y, pre) : gelu_forward(stream, y, pre);
}

/// The gradient of pre from dy [M,F]; gelu's takes the place of dy.
inline Tensor activate_backward(Stream& stream, Arena& arena, Activation kind, const Tensor& dy, const Tensor& pre) {
  if (kind == Activation::gelu) {
    gelu_backward(stream, dy, dy, pre);
    return dy;
  }
  const Tensor dpre = arena.temp(pre.type, pre.shape);
  swiglu_backward(stream, dpre, dy, pre);
  return dpre;
}

}  // namespace tessera
