#pragma once
#include "core/model/layers/linear.hpp"
#include "core/model/layers/norm.hpp"

namespace tessera {

/// The final norm, the projection to logits and the cross-entropy. They are one layer, so that logits exist for a few
/// rows of the batch at a time and are replaced by their gradient at once.
class Head {
 public:
  /// Registers final_norm and, unless it is tied to `tokens`, head.weight.
  Head(ParamRegistry& registry, const GptShape& shape, ParamId tokens);

  /// Adds the cross-entropy of every token, those of padding left out, to call.sums->loss.
  void loss(const Call& call, const MicroBatch& batch, const Residual& x) const;
  /// The same, the gradients of its parameters, and dx [M,C] = d (target_scale * loss) / d x.
  void gradient(const Call& call, const MicroBatch& batch, const Tensor& dx, const Residual& x) const;
  /// logits [V], real, of one row of the stream.
  void logits(const Call& call, const Tensor& logits, const Residual& x) const;

 private:
  /// f(begin, logits) over pieces of the batch.
  template <class F>
  void each_piece(const Call& call, const Tensor& y, const F& f) const;

  NormLayer norm_;
  Linear projection_;
  std::int64_t vocabulary_, padded_, length_, rows_at_once_;
};

}  // namespace tessera
