#pragma once
#include "kernels/attention/attention.hpp"

/// The functions that a back end provides for attention_forward and attention_backward, with arguments checked and
/// FLOPs counted. On a dry stream they take their temporaries from the arena, record their workspaces and return. On
/// the host (attention_host.cpp) the products are libraries'.
namespace tessera::attention {

void forward(Stream& stream, Arena& arena, const AttentionShape& shape, const AttentionOperands& pass);
void backward(Stream& stream, Arena& arena, const AttentionShape& shape, const AttentionOperands& pass,
              const Tensor& dqkv, const Tensor& dout);

/// A back end's faster version of the portable rotary(), with the same bits; arguments are checked; `sign` -1: the
/// inverse. Returns false, having done nothing, if there is none.
bool rotary(Stream& stream, const AttentionShape& shape, const Tensor& qkv, const Tensor& table, float sign,
            const Tensor& positions);

}  // namespace tessera::attention
