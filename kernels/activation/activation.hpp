#pragma once
#include "kernels/base/stream.hpp"

namespace tessera {

/// dpre = dy gelu'(pre), elementwise, the tanh form. dpre may be dy.
void gelu_backward(Stream& stream, const Tensor& dpre, const Tensor& dy, const Tensor& pre);

/// y [M,F] = gelu(pre [M,F]); for recomputation.
void gelu_forward(Stream& stream, const Tensor& y, const Tensor& pre);

/// y [M,F] = silu(gate) up with gate_up [M,2F], gate first.
void swiglu_forward(Stream& stream, const Tensor& y, const Tensor& gate_up);
/// dgate_up [M,2F] from dy [M,F].
void swiglu_backward(Stream& stream, const Tensor& dgate_up, const Tensor& dy, const Tensor& gate_up);

/// y = a + b, elementwise, rounded once; y may be a or b.
void add(Stream& stream, const Tensor& y, const Tensor& a, const Tensor& b);

}  // namespace tessera
