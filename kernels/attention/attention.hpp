#pragma once
#include "kernels/base/stream.hpp"

namespace tessera {

/// Whether additions of one gradient have an order, so that equal operands give equal bits, or may come as they are
/// done.
enum class SumOrder : std::uint8_t { fixed, free };

/// Shape of causal self-attention over packed projections: rows are tokens (sequence-major), columns all of Q (H D),
/// then K (G D), then V (G D). Query head h reads key head h / (H / G).
struct AttentionShape {
  std::int64_t sequences = 0, length = 0, heads = 0, kv_heads = 0, head_dim = 0;
  SumOrder order = SumOrder::fixed;
  std::int64_t columns() const { return (heads + 2 * kv_heads) * head_dim; }
};

/// out [tokens, H D] = softmax(q k^T / sqrt(D), causal) v; lse [sequences, H, T] (fp32, fp64 for fp64) is the
/// logarithm of each row's sum, which backward needs. Scores and their softmax are in fp32 (fp64). Orders on `stream`.
/// Temporaries come from `arena`.temp().
void attention_forward(Stream& stream, Arena& arena, const AttentionShape& shape, const Tensor& out, const Tensor& lse,
                       const Tensor& qkv);

/// dqkv from dout; qkv, out, lse as forward left them. Every element of dqkv is written.
void attention_backward(Stream& stream, Arena& arena, const AttentionShape& shape, const Tensor& dqkv,
                        const Tensor& dout, const Tensor& qkv, const Tensor& out, const Tensor& lse);

/// Attention of new tokens of ONE sequence (shape.sequences 1, shape.length of them, at positions from `first` on) to
/// those before and to themselves. Their keys and values join `cache` [capacity, 2 G D], which holds those of positions
/// below `first`; then out [length, H D] is as attention_forward() has it, with weights in fp32 (fp64). The bits of a
/// row are the same however a sequence is taken apart. Orders on `stream`. Temporaries come from `arena`.temp().
void attention_extend(Stream& stream, Arena& arena, const AttentionShape& shape, const Tensor& out,
                      const Tensor& cache, const Tensor& qkv, std::int64_t first);

/// Llama 3's rotary scaling for longer texts: pairs that turn fewer than `low_freq_factor` times in `original_seq_len`
/// positions are slowed down by `factor`, those of more than `high_freq_factor` turns not, those between in part.
struct RopeScaling {
  double factor = 1;  ///< 1: no pair is slowed down
  double low_freq_factor = 1, high_freq_factor = 4;
  double original_seq_len = 8192;
  bool operator==(const RopeScaling&) const = default;
};

/// Rotary embedding in place on Q and K of qkv, pairs (j, j + D/2), angle = position * base^(-2j/D). `table` [T, D]
/// holds cos in the first D/2 columns and sin in the rest, computed in fp64 and rounded once to fp32 (fp64 for fp64).
/// `inverse` turns back, which is also the gradient.
enum class Rotation { forward, inverse };
void rotary(Stream& stream, const AttentionShape& shape, const Tensor& qkv, const Tensor& table, Rotation direction);
/// Fills `table` for rotary().
void rotary_table(Stream& stream, const Tensor& table, double base, const RopeScaling& scaling = {});

}  // namespace tessera
