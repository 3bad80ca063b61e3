#pragma once
#include "kernels/base/stream.hpp"
#include "kernels/gemm/operand.hpp"

/// Matrix products of a linear layer, y = x W^T + b with W [out, in]. Sums run in fp32 (fp64 for fp64) and are rounded
/// once. Each call is described by one gemm::Product, which its back end hands on to its library. All tensors are of
/// one type unless said otherwise. Factors may be codes, both of them, of the copies whose blocks run along the sum
/// (x and w rowwise in forward; dy rowwise and w columnwise for dx; dy and x columnwise for dw): they count as bf16,
/// and are decoded where no unit multiplies them; products with tensor scales are multiplied by those of both factors,
/// in fp32, before anything is added. Everything orders on `stream`; nothing allocates after the first call of a shape.
/// On the host products are cut into fixed tiles, with progress between them, so equal operands give equal bits
/// whatever the number of ranks.
namespace tessera {

/// y [M,N] = x [M,K] w^T + bias. `bias` [N] may be empty.
void linear_forward(Stream& stream, const Tensor& y, const Operand& x, const Operand& w, const Tensor& bias = {});

/// As linear_forward with pre [M,N] the sum before the activation, kept for backward, and y = gelu of that sum (tanh
/// form), as it is stored or before that rounding.
void linear_gelu_forward(Stream& stream, const Tensor& y, const Tensor& pre, const Operand& x, const Operand& w,
                         const Tensor& bias = {});

/// dx [M,K] = dy [M,N] w.
void linear_input_gradient(Stream& stream, const Tensor& dx, const Operand& dy, const Operand& w);

/// dpre [M,K] = (dy [M,N] w) gelu'(pre [M,K]): the input gradient of the layer behind a gelu, and the gelu's own. The
/// product may or may not be rounded before it is multiplied.
void linear_gelu_input_gradient(Stream& stream, const Tensor& dpre, const Operand& dy, const Operand& w,
                                const Tensor& pre);

/// dw = beta dw + dy^T x, with dy [M,N], x [M,K], dw.sum [N,K]. dw.sum is fp32 (fp64 for fp64) when accumulation is
/// fused into the product; it may also be of the operands' type with beta 0 (unfused: the product rounded once).
void linear_weight_gradient(Stream& stream, const Gradient& dw, const Operand& dy, const Operand& x);

/// db = beta db + column sums of dy [M,N], in fp32 (fp64 for fp64), rows added in a fixed order.
void bias_gradient(Stream& stream, const Gradient& db, const Tensor& dy);

/// sum = beta sum + fp32(contribution), elementwise: the second half of an unfused weight gradient. The contribution
/// has the shape of one member of `sum`.
void accumulate(Stream& stream, const Gradient& sum, const Tensor& contribution);

/// The expert forms: rows of x are sorted by expert, those of expert e are [offsets[e], offsets[e+1]) with offsets
/// (i32, E + 1 entries) on the device; w holds E members, one for all (single) or one each (discrete). An expert
/// without rows gets a weight gradient of zero (beta 0) or none (beta 1). All experts' gradients have one beta.
void expert_forward(Stream& stream, const Tensor& y, const Operand& x, const ExpertOperands& w, const Tensor& offsets);
void expert_input_gradient(Stream& stream, const Tensor& dx, const Operand& dy, const ExpertOperands& w,
                           const Tensor& offsets);
/// `scratch` [out, in] of the operands' type makes the accumulation unfused; empty: fused. Of codes each expert's rows
/// begin at a multiple of the rows that share a columnwise scale.
void expert_weight_gradient(Stream& stream, const ExpertGradients& dw, const Operand& dy, const Operand& x,
                            const Tensor& offsets, const Tensor& scratch);

/// The most experts of one weight each (discrete) that a product takes; grouped weights know no limit.
std::int64_t most_discrete_experts();

}  // namespace tessera
