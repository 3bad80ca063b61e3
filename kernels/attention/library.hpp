#pragma once
#include "kernels/attention/attention.hpp"

/// CUDA builds only: attention by cuDNN, if it is installed and takes the shape (bf16, head_dim a multiple of 8 up to
/// 128). On a dry stream only the workspace is recorded.
namespace tessera::attention {

/// Returns false, having done nothing, if cuDNN does not take the shape or wants more workspace than planned.
bool library_forward(Stream& stream, const AttentionShape& shape, const AttentionOperands& pass);
bool library_backward(Stream& stream, const AttentionShape& shape, const AttentionOperands& pass, const Tensor& dqkv,
                      const Tensor& dout);

}  // namespace tessera::attention
