#pragma once
#include "kernels/attention/attention.hpp"

/// What a back end provides behind attention_forward and attention_backward: their arguments, checked and counted.
/// Called on a dry stream too, to take its temporaries from the arena, note its workspaces and return.
/// attention_host.cpp asks the host's libraries.
namespace tessera::attention {

void forward(Stream& stream, Arena& arena, const AttentionShape& shape, const Tensor& out, const Tensor& lse,
             const Tensor& qkv);
void backward(Stream& stream, Arena& arena, const AttentionShape& shape, const Tensor& dqkv, const Tensor& dout,
              const Tensor& qkv, const Tensor& out, const Tensor& lse);

/// A back end's faster version of the portable rotary(), with its arguments, checked, and bits; `sign` -1: the inverse.
/// Returns false, having done nothing, if there is none.
bool rotary(Stream& stream, const AttentionShape& shape, const Tensor& qkv, const Tensor& table, float sign);

}  // namespace tessera::attention
