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

/// Operands of a query and key norm, all of which its gradients read but weights' none.
struct HeadNorm {
  Tensor rstd;       ///< [tokens, qk_norms()] fp32 (fp64 for fp64), written by forward
  Tensor qkv;        ///< [tokens, (H + 2G) D], before the norm
  Tensor q = {}, k = {};  ///< weights: [D] each, or [H D] and [G D], with which the mean is over all heads of a token
  double eps = norm_eps;
};

/// In y every head of Q is divided by its root mean square and multiplied by q, every head of K likewise by k; V is
/// copied. y has the shape of qkv. Statistics in fp32 (fp64). Sources: Qwen3 (Yang 2025) by head, OLMoE (Muennighoff
/// 2024) over the width.
void head_norm_forward(Stream& stream, const AttentionShape& shape, const HeadNorm& norm, const Tensor& y);

/// Turns dqkv in place from the gradient of y into that of qkv.
void head_norm_backward(Stream& stream, const AttentionShape& shape, const HeadNorm& norm, const Tensor& dqkv);

/// dq = beta dq + sum over tokens (and heads of Q, by head) of dy x rstd; dk likewise for K. dy: the gradient of y,
/// before head_norm_backward() changes it. In a fixed order; temporaries from arena.temp(). Gradients are fp32 (fp64).
void head_norm_weight_gradients(Stream& stream, Arena& arena, const AttentionShape& shape, const HeadNorm& norm,
                                const Tensor& dy, const Gradient& dq, const Gradient& dk);

}  // namespace tessera
