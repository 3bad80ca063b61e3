#pragma once
#include "kernels/base/stream.hpp"
#include "kernels/gemm/operand.hpp"

/// Matrix products of a linear layer, y = x W^T + b with W [out, in]. Sums are in fp32 (fp64 for fp64) and rounded
/// once. Each call is described by one gemm::Product, which its back end passes to a library. All tensors have one type
/// unless said otherwise. Both factors may be codes. Their blocks run along the summed dimension. In forward x and w
/// are rowwise; for dx dy is rowwise and w columnwise; for dw dy and x are columnwise. Codes count as bf16, and are
/// decoded first if the hardware cannot multiply them. With tensor scales, products are multiplied by the scales of
/// both factors, in fp32, before anything is added. Everything orders on `stream`; nothing allocates after the first
/// call of a shape. On the host, products are cut into fixed tiles, with progress() between them, so that equal
/// operands give equal bits whatever the number of ranks. Local.
namespace tessera {

/// y [M,N] = x [M,K] w^T + bias. `bias` [N] may be empty.
void linear_forward(Stream& stream, const Tensor& y, const Operand& x, const Operand& w, const Tensor& bias = {});

/// linear_forward with a GELU: pre [M,N] is the sum before the activation, kept for backward. Then y = gelu(pre) (tanh
/// form), computed from pre as stored or before its rounding.
void linear_gelu_forward(Stream& stream, const Tensor& y, const Tensor& pre, const Operand& x, const Operand& w,
                         const Tensor& bias = {});

/// dx [M,K] = dy [M,N] w.
void linear_input_gradient(Stream& stream, const Tensor& dx, const Operand& dy, const Operand& w);

/// dpre [M,K] = (dy [M,N] w) gelu'(pre [M,K]): the input gradient of the layer after a GELU, times the GELU's
/// derivative. The product may or may not be rounded before it is multiplied.
void linear_gelu_input_gradient(Stream& stream, const Tensor& dpre, const Operand& dy, const Operand& w,
                                const Tensor& pre);

/// dw = beta dw + dy^T x, with dy [M,N], x [M,K], dw.sum [N,K]. dw.sum is fp32 (fp64 for fp64) when accumulation is
/// fused into the product. It may also be of the operands' type with beta 0 (unfused: the product rounded once).
void linear_weight_gradient(Stream& stream, const Gradient& dw, const Operand& dy, const Operand& x);

/// db = beta db + column sums of dy [M,N], in fp32 (fp64 for fp64), rows added in a fixed order.
void bias_gradient(Stream& stream, const Gradient& db, const Tensor& dy);

/// sum = beta sum + fp32(contribution), elementwise: the second half of an unfused weight gradient. The contribution
/// has the shape of one member of `sum`.
void accumulate(Stream& stream, const Gradient& sum, const Tensor& contribution);

/// Grouped products of experts. Rows of x are sorted by expert: those of expert e are [offsets[e], offsets[e+1]), with
/// offsets (i32, E + 1 entries) on the device. w is one operand of E members (single) or E operands (discrete). An
/// expert without rows gets a weight gradient of zero (beta 0) or none (beta 1). All experts' gradients have one beta.
void expert_forward(Stream& stream, const Tensor& y, const Operand& x, const ExpertOperands& w, const Tensor& offsets);
void expert_input_gradient(Stream& stream, const Tensor& dx, const Operand& dy, const ExpertOperands& w,
                           const Tensor& offsets);
/// `scratch` [out, in] of the operands' type makes the accumulation unfused; empty: fused. With codes, each expert's
/// rows must begin at a multiple of the rows that share a columnwise scale.
void expert_weight_gradient(Stream& stream, const ExpertGradients& dw, const Operand& dy, const Operand& x,
                            const Tensor& offsets, const Tensor& scratch);

/// Largest number of discrete experts in one product; grouped weights have no limit.
std::int64_t most_discrete_experts();

}  // namespace tessera
