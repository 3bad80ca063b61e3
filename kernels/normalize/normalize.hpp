#pragma once
#include "kernels/base/stream.hpp"

namespace tessera {

enum class Norm { layer, rms };
inline constexpr double norm_eps = 1e-5;  ///< default

/// Arguments of norm_forward(): y, residual_out, x, branch [M,C]; weight, bias [C]; mean, rstd [M] fp32 (fp64 for
/// fp64).
struct NormForward {
  Tensor y = {};
  Tensor residual_out = {};  ///< may be x itself; unused without a branch
  Tensor mean = {};          ///< empty for rms
  Tensor rstd = {};
  Tensor x = {};
  Tensor branch = {};  ///< may be empty
  Tensor weight = {};
  Tensor bias = {};  ///< may be empty; for rms it is
  double eps = norm_eps;
};
/// Residual sum and norm: residual_out = x + branch, rounded to their type (without a branch: x), then
/// y = norm(residual_out) w + b. Statistics in fp32; `eps` is added to the mean square.
void norm_forward(Stream& stream, Norm kind, const NormForward& args);

/// Arguments of a norm's gradients: dx, dy and x, the input of forward's norm, [M,C]; mean (empty for rms) and rstd [M]
/// of forward; weight [C].
struct NormBackward {
  Tensor dx = {}, dy = {}, x = {}, mean = {}, rstd = {}, weight = {};
};
/// Adds the norm's input gradient in place to dx, the gradient of the residual stream: dx += (d norm(x)/dx)^T dy.
void norm_backward(Stream& stream, Norm kind, const NormBackward& args);

/// dweight = beta dweight + sum over rows of dy (x - mean) rstd; dbias (may be empty) = beta dbias + sum over rows of
/// dy. Rows in a fixed order; temporaries from arena.temp(), released on return. Gradients are fp32 (fp64). Reads
/// neither dx nor weight.
void norm_weight_gradient(Stream& stream, Arena& arena, Norm kind, const Gradient& dweight, const Gradient& dbias,
                          const NormBackward& args);

/// norm_weight_gradient, then norm_backward; reads dy and x only once if the back end can.
void norm_gradients(Stream& stream, Arena& arena, Norm kind, const Gradient& dweight, const Gradient& dbias,
                    const NormBackward& args);

}  // namespace tessera
