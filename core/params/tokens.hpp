#pragma once
#include <utility>

#include "core/layout/layout.hpp"
#include "core/params/access.hpp"
#include "kernels/reduce/reduce.hpp"

namespace tessera {

class Gradients;
class ParamSync;

/// A phase of one step, held by whoever may take the next one. Move-only: stepping twice or publishing before stepping
/// does not compile; use after move throws StateError. Destroyed unspent, it drops the gradients, and the step may be
/// done again.
class Token {
 protected:
  explicit Token(Gradients& gradients) : gradients_(&gradients) {}
  Token(Token&& other) noexcept : gradients_(std::exchange(other.gradients_, nullptr)) {}
  Token& operator=(Token&&) = delete;
  ~Token();

  Gradients& held() const;
  Gradients& spend();

 private:
  Gradients* gradients_;
};

/// A pass without gradients under way; its end gives the slots of the pool back. Move-only.
class [[nodiscard]] Forward {
 public:
  Forward(Forward&& other) noexcept : sync_(std::exchange(other.sync_, nullptr)) {}
  Forward& operator=(Forward&&) = delete;
  ~Forward();

 private:
  friend class ParamSync;
  explicit Forward(ParamSync& sync) : sync_(&sync) {}
  ParamSync* sync_;
};

/// Every weight may have changed; ParamSync::publish takes it. Initialisation, load and the optimizers make one.
class [[nodiscard]] Updated {
 public:
  Updated(Updated&&) noexcept = default;

 private:
  friend class Masters;
  friend class Clipped;
  Updated() = default;
};

/// Reduced gradients with the clip coefficient decided.
class [[nodiscard]] Clipped : public Token {
 public:
  Clipped(Clipped&&) noexcept = default;
  /// This rank's slice of a bucket, before clipping; the optimizer multiplies by clip()->coefficient.
  Tensor shard(BucketId bucket) const;
  const ClipResult* clip() const { return clip_; }  ///< on the device
  /// The optimizer has stepped: the gradients are empty again.
  Updated updated() &&;

 private:
  friend class Reduced;
  Clipped(Gradients& gradients, const ClipResult* clip) : Token(gradients), clip_(clip) {}
  const ClipResult* clip_;
};

/// Gradients summed over ranks, each rank holding its slices.
class [[nodiscard]] Reduced : public Token {
 public:
  Reduced(Reduced&&) noexcept = default;
  Tensor shard(BucketId bucket) const;
  int buckets() const;
  Clipped clipped(const ClipResult* clip) &&;

 private:
  friend class Accumulating;
  explicit Reduced(Gradients& gradients) : Token(gradients) {}
};

/// Gradients being summed over micro-batches.
class [[nodiscard]] Accumulating : public Token, public GradientSink {
 public:
  Accumulating(Accumulating&&) noexcept = default;

  Gradient slot(ParamId param) override;
  void written(Stream& stream, ParamId param) override;
  /// Sums over ranks, as SyncRules say, what backward has not yet begun to reduce, and waits for all. Collective.
  Reduced reduce(Stream& stream) &&;

 private:
  friend class ParamSync;
  explicit Accumulating(Gradients& gradients) : Token(gradients) {}
};

}  // namespace tessera
