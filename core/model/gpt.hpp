#pragma once
#include <vector>

#include "core/model/layers/block.hpp"
#include "core/model/layers/embedding.hpp"
#include "core/model/layers/head.hpp"
#include "core/model/pass.hpp"
#include "core/model/shape.hpp"

namespace tessera {

/// A sequence under generation, with the key/value cache of its tokens.
struct Sequence {
  Tensor cache;             ///< [L, T, 2 G D] in the compute type: keys and values by block and position
  Tensor rotation;          ///< [T, R]: the table of rotary(); empty where positions are learned
  Tensor taken;             ///< i32 [layers with experts, E]: slots so far; empty where experts have no capacity
  std::int64_t length = 0;  ///< tokens so far
  std::int64_t capacity() const { return cache.shape[1]; }
};

/// A GPT or mixture-of-experts language model: embedding, L blocks, head. Holds shapes and parameter ids, no memory:
/// what a call computes lies in pass.arena, which is released on return. Calls order on pass.stream. They ask for
/// weights and write gradients in an order that depends on the shape alone. Collective if pass.weights, pass.gradients
/// or pass.exchange are.
class Gpt {
 public:
  /// Registers all parameters in forward order. Throws Error{internal} for a shape that no kernel takes.
  Gpt(ParamRegistry& registry, const GptShape& shape);

  /// pass.gradients += d loss / d w of the micro-batch, where loss is target_scale times the sum of cross-entropies
  /// plus loss_scale times the auxiliary losses; *pass.sums += the unscaled sums. `batch` has no padding (else
  /// Error{internal}).
  void gradient(const Pass& pass, const MicroBatch& batch) const;

  /// pass.sums->loss += the sum of cross-entropies of all tokens but the padding, with the bits that gradient()
  /// would add. Writes nothing else. The padding's contents change no bit.
  void evaluate(const Pass& pass, const MicroBatch& batch) const;

  /// Writes to `logits` [V] (fp32, fp64) those of the token that follows ids[position]. ids i32 [T]; ids after
  /// `position` are ignored.
  void next_logits(const Pass& pass, const Tensor& ids, std::int64_t position, const Tensor& logits) const;

  /// Makes an empty sequence for at most `capacity` tokens, in memory from arena.keep().
  Sequence sequence(Stream& stream, Arena& arena, std::int64_t capacity) const;
  /// Appends ids, i32 [n], to `sequence`; unless `logits` [V] (fp32, fp64) is empty, writes there those of the token
  /// that follows. Each token is computed once, against the cached keys and values of those before. Its bits do not
  /// depend on how the sequence was divided into calls. That requires that a row of a matrix product has the same bits
  /// whatever the other rows are.
  void extend(const Pass& pass, Sequence& sequence, const Tensor& ids, const Tensor& logits) const;

  const GptShape& shape() const { return shape_; }

 private:
  struct Saved {
    std::vector<Tensor> streams;  ///< [M,C], the residual stream before each block, and before the head
    std::vector<Recompute<Block>::Saved> blocks;
  };

  Call start(const Pass& pass, const MicroBatch& batch) const;
  Saved place(Arena& arena, std::int64_t tokens) const;
  /// Returns the residual stream that enters the head, with a branch (in `branch`, [M,C]) that is still to be added.
  Residual forward(const Call& call, const Tensor& ids, const Saved& saved, const Tensor& branch) const;
  Tensor stream_temp(Arena& arena, std::int64_t tokens) const;

  GptShape shape_;
  Embedding embedding_;
  std::vector<Recompute<Block>> blocks_;
  Head head_;
};

}  // namespace tessera
