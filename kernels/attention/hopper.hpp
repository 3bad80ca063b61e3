#pragma once
#include "kernels/attention/attention.hpp"

/// CUDA builds with CUTLASS only: attention on Hopper's tensor cores, in the shapes that the kernels take (bf16, heads
/// of 64 or 128 columns, no `positions`). Sums are in a fixed order; the bits of a sequence do not depend on the
/// others.
namespace tessera::attention {

/// For heads of 64 columns. Return false, having done nothing, if the GPU or the shape is not one of those. Temporaries
/// are `arena`.temp()'s.
bool hopper_forward(Stream& stream, const AttentionShape& shape, const AttentionOperands& pass);
bool hopper_backward(Stream& stream, Arena& arena, const AttentionShape& shape, const AttentionOperands& pass,
                     const Tensor& dqkv, const Tensor& dout);

/// The same for heads of 128 columns.
bool wide_forward(Stream& stream, const AttentionShape& shape, const AttentionOperands& pass);
bool wide_backward(Stream& stream, Arena& arena, const AttentionShape& shape, const AttentionOperands& pass,
                   const Tensor& dqkv, const Tensor& dout);

}  // namespace tessera::attention
