#pragma once
#include "kernels/attention/attention.hpp"
#include "kernels/normalize/normalize.hpp"

namespace tessera {

/// Query and key norm: y = qkv, of which every head of Q is divided by its root mean square and multiplied by `q`,
/// every head of K likewise by `k` [D]; V as it is. qkv, y [tokens, (H + 2G) D]; rstd [tokens, H + G] fp32 (fp64 for
/// fp64). Source: Qwen3 (Yang 2025). Statistics in fp32 (fp64).
void head_norm_forward(Stream& stream, const AttentionShape& shape, const Tensor& y, const Tensor& rstd,
                       const Tensor& qkv, const Tensor& q, const Tensor& k, double eps = norm_eps);

/// dqkv, in place: the gradient of y becomes that of qkv. qkv and rstd as forward had and left them.
void head_norm_backward(Stream& stream, const AttentionShape& shape, const Tensor& dqkv, const Tensor& qkv,
                        const Tensor& rstd, const Tensor& q, const Tensor& k);

/// dq = beta dq + the sum over tokens and heads of dy x rstd, of Q; dk likewise, of K. dy: the gradient of y, before
/// head_norm_backward() has changed it. In a fixed order; temporaries from `arena`.temp(). Gradients are fp32 (fp64).
void head_norm_weight_gradients(Stream& stream, Arena& arena, const AttentionShape& shape, const Gradient& dq,
                                const Gradient& dk, const Tensor& dy, const Tensor& qkv, const Tensor& rstd);

}  // namespace tessera
