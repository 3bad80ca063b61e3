#pragma once
#include "kernels/base/stream.hpp"

namespace tessera {

/// Vectors of tokens [V,C], and of positions [T,C] or empty.
struct EmbeddingTables {
  Tensor tokens, positions;
};

/// y [M,C] = tokens[id[m]] + positions[m mod T] (positions may be empty), or + positions[at[m]] with `at`, i32 [M],
/// below T. ids: i32 [M].
void embedding_forward(Stream& stream, const Tensor& y, const Tensor& ids, const EmbeddingTables& tables,
                       const Tensor& at = {});

/// dtokens (fp32, fp64) = ((beta dtokens + dy[m0]) + dy[m1]) + ... over the positions m0 < m1 < ... of each token.
/// Writes every row of dtokens if beta is 0. Without atomics: sorts positions by token, in space from arena.temp(),
/// released on return.
void embedding_token_gradient(Stream& stream, Arena& arena, const Gradient& dtokens, const Tensor& ids,
                              const Tensor& dy);

/// dpositions = beta dpositions + sum over sequences of dy, in ascending order.
void embedding_position_gradient(Stream& stream, const Gradient& dpositions, const Tensor& dy);

}  // namespace tessera
