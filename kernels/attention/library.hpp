#pragma once
#include "kernels/attention/attention.hpp"

/// CUDA builds only: attention by cuDNN, where there is one and it takes the shape (bf16, head_dim a multiple of 8 up
/// to 128). On a dry stream the workspace is noted.
namespace tessera::attention {

/// False, with nothing done, where cuDNN does not take the shape, or wants more workspace than is planned for it.
bool library_forward(Stream& stream, const AttentionShape& shape, const Tensor& out, const Tensor& lse,
                     const Tensor& qkv);
bool library_backward(Stream& stream, const AttentionShape& shape, const Tensor& dqkv, const Tensor& dout,
                      const Tensor& qkv, const Tensor& out, const Tensor& lse);

}  // namespace tessera::attention
