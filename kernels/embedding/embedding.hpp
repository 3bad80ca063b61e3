#pragma once
#include "kernels/base/stream.hpp"

namespace tessera {

/// y [M,C] = tokens[id[m]] + positions[m mod T] (positions may be empty), or + positions[places[m]] with places, i32
/// [M], below T. ids: i32 [M].
void embedding_forward(Stream& stream, const Tensor& y, const Tensor& ids, const Tensor& tokens,
                       const Tensor& positions, const Tensor& places = {});

/// dtokens (fp32, fp64) = ((beta dtokens + dy[m0]) + dy[m1]) + ... over the positions m0 < m1 < ... of each token.
/// Writes every row of dtokens if beta is 0. Without atomics: sorts positions by token, in space from arena.temp(),
/// released on return.
void embedding_token_gradient(Stream& stream, Arena& arena, const Gradient& dtokens, const Tensor& ids,
                              const Tensor& dy);

/// dpositions = beta dpositions + sum over sequences of dy, in ascending order.
void embedding_position_gradient(Stream& stream, const Gradient& dpositions, const Tensor& dy);

}  // namespace tessera
