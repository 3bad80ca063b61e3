#pragma once
#include "kernels/base/stream.hpp"

namespace tessera {

/// Shape of causal self-attention over packed projections: rows are tokens (sequence-major), columns all of Q (H D),
/// then K (G D), then V (G D). Query head h reads key head h / (H / G).
struct AttentionShape {
  std::int64_t sequences = 0, length = 0, heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t columns() const { return (heads + 2 * kv_heads) * head_dim; }
};

/// Input and results of attention_forward(), all of which attention_backward() reads.
struct AttentionOperands {
  Tensor out;  ///< [tokens, H D]
  Tensor lse;  ///< [sequences, H, T] fp32 (fp64 for fp64): the logarithm of each row's sum
  Tensor qkv;  ///< [tokens, (H + 2 G) D]
  /// i32 [tokens], keep documents apart: a token's position in the part of its document that lies in its sequence,
  /// counted from 0. A token sees those of its own document alone. Empty: a sequence is one document.
  Tensor positions = {};
};

/// out = softmax(q k^T / sqrt(D), causal) v. Scores and their softmax are in fp32 (fp64). Orders on `stream`.
/// Temporaries come from `arena`.temp().
void attention_forward(Stream& stream, Arena& arena, const AttentionShape& shape, const AttentionOperands& pass);

/// Computes dqkv from dout, after the forward pass. Writes every element of dqkv.
void attention_backward(Stream& stream, Arena& arena, const AttentionShape& shape, const AttentionOperands& pass,
                        const Tensor& dqkv, const Tensor& dout);

/// The widest head in fp32 or bf16 that attention_backward() takes on this back end.
std::int64_t most_head_dim();

/// Attention with a key/value cache: shape.length new tokens of ONE sequence (shape.sequences 1), at positions from
/// `first` on, attend to the tokens before and to themselves. Appends their keys and values to `cache` [capacity, 2 G
/// D], which holds those of positions below `first`; out [length, H D] is as in attention_forward(), with weights in
/// fp32 (fp64). The bits of a row do not depend on how the sequence was divided into calls. Orders on `stream`.
/// Temporaries come from arena.temp().
void attention_extend(Stream& stream, Arena& arena, const AttentionShape& shape, const Tensor& out,
                      const Tensor& cache, const Tensor& qkv, std::int64_t first);

/// Llama 3's scaling of rotary positions for longer sequences: pairs that turn fewer than `low_freq_factor` times in
/// `original_seq_len` positions are slowed down by `factor`. Pairs that turn more than `high_freq_factor` times are
/// not; those between in part.
struct RopeScaling {
  double factor = 1;  ///< 1: no pair is slowed down
  double low_freq_factor = 1, high_freq_factor = 4;
  double original_seq_len = 8192;
  bool operator==(const RopeScaling&) const = default;
};

/// Rotary position embedding in place on the first R elements of each head of Q and K of qkv: pairs (j, j + R/2), angle
/// = position * base^(-2j/R). `table` [T, R] holds cos in the first R/2 columns and sin in the rest. It is computed in
/// fp64 and rounded once to fp32 (fp64 for fp64). R is even and at most D. `inverse` rotates back, which is also the
/// gradient. `positions` i32 [tokens], below T, as attention_forward() takes them; empty: a token's place in its
/// sequence.
enum class Rotation { forward, inverse };
void rotary(Stream& stream, const AttentionShape& shape, const Tensor& qkv, const Tensor& table, Rotation direction,
            const Tensor& positions = {});
/// Fills `table` for rotary().
void rotary_table(Stream& stream, const Tensor& table, double base, const RopeScaling& scaling = {});

}  // namespace tessera
