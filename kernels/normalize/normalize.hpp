#pragma once
#include "kernels/base/stream.hpp"

namespace tessera {

enum class Norm { layer, rms };
inline constexpr double norm_eps = 1e-5;  ///< where nothing else is asked for

/// residual' = residual + branch (rounded to their type; `branch` may be empty: no sum, residual_out unused), then
/// y = norm(residual') w + b. x, branch, residual_out, y [M,C]; weight, bias [C] (bias empty for rms or without one);
/// mean, rstd [M] fp32 (fp64 for fp64; mean empty for rms). Statistics in fp32; `eps` is added to the mean square.
/// residual_out may be x itself.
void norm_forward(Stream& stream, Norm kind, const Tensor& y, const Tensor& residual_out, const Tensor& mean,
                  const Tensor& rstd, const Tensor& x, const Tensor& branch, const Tensor& weight, const Tensor& bias,
                  double eps = norm_eps);

/// dx = dx + d norm(x)/dx . dy, in place on dx [M,C] (the gradient of the residual stream). x is what forward
/// normalised.
void norm_backward(Stream& stream, Norm kind, const Tensor& dx, const Tensor& dy, const Tensor& x, const Tensor& mean,
                   const Tensor& rstd, const Tensor& weight);

/// dweight = beta dweight + sum over rows of dy (x - mean) rstd; dbias (may be empty) likewise of dy. Rows in a fixed
/// order; temporaries from `arena`.temp(), given back on return. Gradients are fp32 (fp64).
void norm_weight_gradient(Stream& stream, Arena& arena, Norm kind, const Gradient& dweight, const Gradient& dbias,
                          const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd);

/// norm_weight_gradient, then norm_backward, reading dy and x once where the back end can.
void norm_gradients(Stream& stream, Arena& arena, Norm kind, const Tensor& dx, const Gradient& dweight,
                    const Gradient& dbias, const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                    const Tensor& weight);

}  // namespace tessera
