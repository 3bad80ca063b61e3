#pragma once
#include "kernels/gemm/gemm.hpp"

/// What a back end provides behind the functions of gemm.hpp: their arguments, already checked and counted, with at
/// least one row. On a dry stream it notes what will be needed (Stream::workspace, LibraryChoices) and returns.
/// gemm_host.cpp asks the host's libraries.
namespace tessera::gemm {

/// y = x w^T + bias, or pre = that and y = gelu(pre) where `pre` is not empty.
void forward(Stream& stream, const Tensor& y, const Tensor& pre, const Tensor& x, const Operand& w, const Tensor& bias);
void input_gradient(Stream& stream, const Tensor& dx, const Tensor& dy, const Operand& w);
void weight_gradient(Stream& stream, const Gradient& dw, const Tensor& dy, const Tensor& x);
void bias_gradient(Stream& stream, const Gradient& db, const Tensor& dy);
void expert_forward(Stream& stream, const Tensor& y, const Tensor& x, const ExpertOperands& w, const Tensor& offsets);
void expert_input_gradient(Stream& stream, const Tensor& dx, const Tensor& dy, const ExpertOperands& w,
                           const Tensor& offsets);
void expert_weight_gradient(Stream& stream, const ExpertGradients& dw, const Tensor& dy, const Tensor& x,
                            const Tensor& offsets, const Tensor& scratch);

/// dpre = (dy w) gelu'(pre) in one product; false, with nothing done, where the back end has none.
bool gelu_input_gradient(Stream& stream, const Tensor& dpre, const Tensor& dy, const Operand& w, const Tensor& pre);

/// sum = beta sum, for a back end whose product has no rows to add.
void scale(Stream& stream, const Gradient& sum);

}  // namespace tessera::gemm
