#pragma once
#include "kernels/base/stream.hpp"

namespace tessera {

enum class Norm { layer, rms };
inline constexpr double norm_eps = 1e-5;  ///< default

/// Residual sum and norm: residual_out = x + branch, rounded to their type (empty `branch`: y is of x, residual_out
/// unused), then y = norm(residual_out) w + b. x, branch, residual_out, y [M,C]; weight, bias [C] (bias may be empty;
/// for rms it is); mean, rstd [M] fp32 (fp64 for fp64; mean empty for rms). Statistics in fp32; `eps` is added to the
/// mean square. residual_out may be x itself.
void norm_forward(Stream& stream, Norm kind, const Tensor& y, const Tensor& residual_out, const Tensor& mean,
                  const Tensor& rstd, const Tensor& x, const Tensor& branch, const Tensor& weight, const Tensor& bias,
                  double eps = norm_eps);

/// Adds the norm's input gradient in place to dx [M,C], the gradient of the residual stream: dx += (d norm(x)/dx)^T dy.
/// x is the input of forward's norm.
void norm_backward(Stream& stream, Norm kind, const Tensor& dx, const Tensor& dy, const Tensor& x, const Tensor& mean,
                   const Tensor& rstd, const Tensor& weight);

/// dweight = beta dweight + sum over rows of dy (x - mean) rstd; dbias (may be empty) = beta dbias + sum over rows of
/// dy. Rows in a fixed order; temporaries from arena.temp(), released on return. Gradients are fp32 (fp64).
void norm_weight_gradient(Stream& stream, Arena& arena, Norm kind, const Gradient& dweight, const Gradient& dbias,
                          const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd);

/// norm_weight_gradient, then norm_backward; reads dy and x only once if the back end can.
void norm_gradients(Stream& stream, Arena& arena, Norm kind, const Tensor& dx, const Gradient& dweight,
                    const Gradient& dbias, const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                    const Tensor& weight);

}  // namespace tessera
