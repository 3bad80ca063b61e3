#pragma once
#include "core/config/choices.hpp"
#include "core/model/layers/factors.hpp"
#include "kernels/activation/activation.hpp"

namespace tessera {

// Every switch names each activation: the compiler then finds each switch that a new one must be added to.

/// Whether an activation multiplies two projections of its input, gate and up, which are fused into one.
constexpr bool is_gated(Activation kind) {
  switch (kind) {
    case Activation::gelu: return false;
    case Activation::swiglu: return true;
  }
  return false;
}

/// The projection that an activation reads: its name, and its width for an output of width F.
constexpr const char* inner_name(Activation kind) { return is_gated(kind) ? "gate_up" : "up"; }
constexpr std::int64_t inner_width(Activation kind, std::int64_t ffn) { return is_gated(kind) ? 2 * ffn : ffn; }

/// Rows of the matrices that are fused into that projection, as ParamSpec has them: gate and up.
constexpr Shape inner_parts(Activation kind, std::int64_t ffn) { return is_gated(kind) ? Shape{ffn, ffn} : Shape(); }

/// y [M,F] from pre [M, inner_width], in rows before `end` (i32 [1]; empty: all).
inline void activate(Stream& stream, Activation kind, const Tensor& y, const Tensor& pre, const Tensor& end = {}) {
  switch (kind) {
    case Activation::gelu: gelu_forward(stream, y, pre, end); break;
    case Activation::swiglu: swiglu_forward(stream, y, pre, end); break;
  }
}

/// The gradient of pre from dy [M,F], in the place of dy where the activation is not gated.
inline Tensor activate_backward(Stream& stream, Arena& arena, Activation kind, const Tensor& dy, const Tensor& pre,
                                const Tensor& end = {}) {
  const Tensor dpre = is_gated(kind) ? arena.temp(pre.type, pre.shape) : dy;
  switch (kind) {
    case Activation::gelu: gelu_backward(stream, dpre, dy, pre, end); break;
    case Activation::swiglu: swiglu_backward(stream, dpre, dy, pre, end); break;
  }
  return dpre;
}

/// Whether quantizers can compute an activation of width F, and its gradient.
constexpr bool fits_quantizers(Activation kind, std::int64_t ffn) {
  switch (kind) {
    case Activation::gelu: return true;
    case Activation::swiglu: return fits_swiglu(ffn);
  }
  return false;
}

/// The activation of pre, and the gradient of pre from dy, as factors that quantizers compute.
inline Factors::Input activation_of(Activation kind, const Tensor& pre) {
  switch (kind) {
    case Activation::gelu: return Gelu{pre};
    case Activation::swiglu: return Swiglu{pre};
  }
  return pre;
}
inline Factors::OutputGradient activation_gradient_of(Activation kind, const Tensor& dy, const Tensor& pre) {
  switch (kind) {
    case Activation::gelu: return GeluGradient{dy, pre};
    case Activation::swiglu: return SwigluGradient{dy, pre};
  }
  return dy;
}

}  // namespace tessera
