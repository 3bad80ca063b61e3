#pragma once
#include "kernels/base/stream.hpp"

namespace tessera {

// `end` (i32 [1] on the device): rows from there on are neither read nor written. Empty: there are none.

/// dpre = dy gelu'(pre), elementwise, the tanh form. dpre may be dy.
void gelu_backward(Stream& stream, const Tensor& dpre, const Tensor& dy, const Tensor& pre, const Tensor& end = {});

/// y [M,F] = gelu(pre [M,F]); for recomputation.
void gelu_forward(Stream& stream, const Tensor& y, const Tensor& pre, const Tensor& end = {});

/// y [M,F] = silu(gate) up with gate_up [M,2F], gate first.
void swiglu_forward(Stream& stream, const Tensor& y, const Tensor& gate_up, const Tensor& end = {});
/// dgate_up [M,2F] from dy [M,F].
void swiglu_backward(Stream& stream, const Tensor& dgate_up, const Tensor& dy, const Tensor& gate_up,
                     const Tensor& end = {});

/// y = a + b, elementwise, rounded once; y may be a or b.
void add(Stream& stream, const Tensor& y, const Tensor& a, const Tensor& b);

}  // namespace tessera
