#pragma once
#include "kernels/attention/attention.hpp"
#include "kernels/normalize/normalize.hpp"

namespace tessera {

/// What one root mean square of query and key norm is of: a head, or all queries (or keys) of a token.
enum class QkNormOver { head, width };
/// The norms of a token's queries and keys: H + G, or 2.
inline std::int64_t qk_norms(const AttentionShape& shape, QkNormOver over) {
  return over == QkNormOver::head ? shape.heads + shape.kv_heads : 2;
}

/// Query and key norm: in y every head of Q is divided by its root mean square and multiplied by `q` [D], every head of
/// K likewise by `k` [D]; V is copied. With weights q [H D] and k [G D] the mean is over all heads of a token. qkv, y
/// [tokens, (H + 2G) D]; rstd [tokens, qk_norms()] fp32 (fp64 for fp64). Statistics in fp32 (fp64). Sources: Qwen3
/// (Yang 2025) by head, OLMoE (Muennighoff 2024) over the width.
void head_norm_forward(Stream& stream, const AttentionShape& shape, const Tensor& y, const Tensor& rstd,
                       const Tensor& qkv, const Tensor& q, const Tensor& k, double eps = norm_eps);

/// Turns dqkv in place from the gradient of y into that of qkv. qkv and rstd are forward's.
void head_norm_backward(Stream& stream, const AttentionShape& shape, const Tensor& dqkv, const Tensor& qkv,
                        const Tensor& rstd, const Tensor& q, const Tensor& k);

/// dq = beta dq + sum over tokens (and heads of Q, by head) of dy x rstd; dk likewise for K. dy: the gradient of y,
/// before head_norm_backward() changes it. In a fixed order; temporaries from arena.temp(). Gradients are fp32 (fp64).
void head_norm_weight_gradients(Stream& stream, Arena& arena, const AttentionShape& shape, const Gradient& dq,
                                const Gradient& dk, const Tensor& dy, const Tensor& qkv, const Tensor& rstd);

}  // namespace tessera
