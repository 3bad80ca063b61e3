#pragma once
#include <vector>

#include "core/model/layers/block.hpp"
#include "core/model/layers/embedding.hpp"
#include "core/model/layers/head.hpp"
#include "core/model/pass.hpp"
#include "core/model/shape.hpp"

namespace tessera {

/// A sequence that grows, and what its tokens leave for those to come.
struct Sequence {
  Tensor cache;             ///< [L, T, 2 G D] in the compute type: keys and values by block and position
  Tensor rotation;          ///< [T, D]: the table of rotary(); empty where positions are learned
  std::int64_t length = 0;  ///< tokens so far
  std::int64_t capacity() const { return cache.shape[1]; }
};

/// A GPT or mixture-of-experts language model: embedding, L blocks, head. It holds shapes and ids of parameters, no
/// memory; everything a call computes lies in pass.arena and is given back on return. Calls order on pass.stream, ask
/// for weights and give gradients in an order that depends on the shape alone, and are as collective as those two are.
class Gpt {
 public:
  /// Registers all parameters in forward order. Throws Error{internal} for a shape that no kernel takes.
  Gpt(ParamRegistry& registry, const GptShape& shape);

  /// pass.gradients += d loss / d w of the micro-batch, where loss is loss_scale times the sum of cross-entropies plus
  /// the auxiliary losses; *pass.sums += the unscaled sums. `batch` has no padding (else Error{internal}).
  void gradient(const Pass& pass, const MicroBatch& batch) const;

  /// pass.sums->loss += the sum of cross-entropies, with the bits that gradient() would add, those of padding left out;
  /// nothing else is written. What the padding holds changes no bit.
  void evaluate(const Pass& pass, const MicroBatch& batch) const;

  /// logits [V] (fp32, fp64) of the token that follows ids[position]. ids i32 [T]; what lies behind position is
  /// ignored.
  void next_logits(const Pass& pass, const Tensor& ids, std::int64_t position, const Tensor& logits) const;

  /// Memory of an empty sequence of at most `capacity` tokens, from `arena`.keep().
  Sequence sequence(Stream& stream, Arena& arena, std::int64_t capacity) const;
  /// Appends ids, i32 [n], to `sequence`, and unless `logits` is empty writes [V] (fp32, fp64) of the token that
  /// follows. Each token is computed once, against the cache of those before; its bits do not depend on how the
  /// sequence was taken apart, as long as those of a product's row do not depend on the other rows.
  void extend(const Pass& pass, Sequence& sequence, const Tensor& ids, const Tensor& logits) const;

  const GptShape& shape() const { return shape_; }

 private:
  struct Saved {
    std::vector<Tensor> streams;  ///< [M,C], the residual stream before each block, and before the head
    std::vector<Recompute<Block>::Saved> blocks;
  };

  Call start(const Pass& pass, const MicroBatch& batch) const;
  Saved place(Arena& arena, std::int64_t tokens) const;
  /// The stream that enters the head. `branch` [M,C] holds what is still to be added to it.
  Residual forward(const Call& call, const Tensor& ids, const Saved& saved, const Tensor& branch) const;
  Tensor stream_temp(Arena& arena, std::int64_t tokens) const;

  GptShape shape_;
  Embedding embedding_;
  std::vector<Recompute<Block>> blocks_;
  Head head_;
};

}  // namespace tessera
