#pragma once
#include <cstdint>
#include <utility>

#include "core/layout/layout.hpp"
#include "core/params/access.hpp"
#include "kernels/reduce/reduce.hpp"

namespace tessera {

/// What the tokens of a step move from phase to phase. ParamSync implements it in private: a token is the only way to
/// reach it, so that no phase can be left out or made twice.
class GradientSync {
 public:
  /// See GradientSink. Both throw StateError behind the step's last contribution.
  virtual Gradient slot(ParamId param) = 0;
  virtual void written(Stream& stream, ParamId param) = 0;
  /// Brings every group's gradients to Reduced: starts the reductions that backward has not started, waits for all.
  /// Collective over the world.
  virtual void reduce(Stream& stream) = 0;
  virtual int buckets() const = 0;
  /// This rank's shard of a bucket's gradients, which holds the sum over ranks once Reduced.
  virtual const Tensor& shard(BucketId bucket) const = 0;
  /// Brings every group's weights to Stale. Throws StateError while an operand is in use. Collective over the world.
  virtual void invalidate(Stream& stream) = 0;
  /// See Clipped::weight_shard.
  virtual Tensor claim(BucketId bucket) = 0;
  /// Brings every group's gradients to Empty, whatever was written. Finishes reductions in flight. Local.
  virtual void drop() = 0;
  /// Ends a pass: closes its visits. Local.
  virtual void end_pass() = 0;

 protected:
  ~GradientSync() = default;
};

/// A phase of one step; each phase consumes the token of the one before. Move-only: stepping twice or publishing before
/// stepping does not compile, and use after move throws StateError. Destroying an unspent token drops the gradients;
/// then the step can be made again.
class Token {
 protected:
  explicit Token(GradientSync& sync) : sync_(&sync) {}
  Token(Token&& other) noexcept : sync_(std::exchange(other.sync_, nullptr)) {}
  Token& operator=(Token&&) = delete;
  ~Token();

  GradientSync& held() const;
  GradientSync& spend();

 private:
  GradientSync* sync_;
};

/// A pass without gradients (evaluation) under way; its destructor releases the slots of transient weights. Move-only.
class [[nodiscard]] Forward {
 public:
  explicit Forward(GradientSync& sync) : sync_(&sync) {}
  Forward(Forward&& other) noexcept : sync_(std::exchange(other.sync_, nullptr)) {}
  Forward& operator=(Forward&&) = delete;
  ~Forward();

 private:
  GradientSync* sync_;
};

/// The masters have changed: the token that ParamSync::publish takes. Made by initialisation, load and the optimizers.
class [[nodiscard]] Updated {
 public:
  enum class Weights : std::uint8_t {
    current,   ///< publication outdates them, and makes all of them
    outdated,  ///< and some may have been written by the update: Clipped::weight_shard()
  };
  Updated(Updated&&) noexcept = default;
  Weights weights() const { return weights_; }

 private:
  friend class Masters;
  friend class Clipped;
  explicit Updated(Weights weights) : weights_(weights) {}
  Weights weights_;
};

/// Reduced gradients whose clip coefficient has been decided. All weights are outdated: an update may write them.
class [[nodiscard]] Clipped : public Token {
 public:
  Clipped(GradientSync& sync, const ClipResult* clip) : Token(sync), clip_(clip) {}
  Clipped(Clipped&&) noexcept = default;
  /// This rank's slice of a bucket, before clipping; the optimizer multiplies by clip()->coefficient.
  Tensor shard(BucketId bucket) const;
  const ClipResult* clip() const { return clip_; }  ///< on the device
  /// Claims this rank's slice of a bucket's weights, bf16, for the update. It has to write there, with every master,
  /// the master rounded to nearest even. Publication then reads no master of this bucket. Empty, and nothing claimed,
  /// where weights travel in another form. Local.
  Tensor weight_shard(BucketId bucket) const;
  /// To be called when the optimizer has stepped: empties the gradients.
  Updated updated() &&;

 private:
  const ClipResult* clip_;
};

/// Gradients summed over ranks, each rank holding its slices.
class [[nodiscard]] Reduced : public Token {
 public:
  explicit Reduced(GradientSync& sync) : Token(sync) {}
  Reduced(Reduced&&) noexcept = default;
  Tensor shard(BucketId bucket) const;
  int buckets() const;
  /// Outdates all weights: only a publication makes them readable again. Throws StateError while an operand is in use.
  /// Collective over the world.
  Clipped clipped(Stream& stream, const ClipResult* clip) &&;
};

/// Gradient accumulation under way: contributions of micro-batches are being summed.
class [[nodiscard]] Accumulating : public Token, public GradientSink {
 public:
  explicit Accumulating(GradientSync& sync) : Token(sync) {}
  Accumulating(Accumulating&&) noexcept = default;

  Gradient slot(ParamId param) override;
  void written(Stream& stream, ParamId param) override;
  /// Begins the reductions that backward has not begun yet, and waits for all of them. Collective over the world.
  Reduced reduce(Stream& stream) &&;
};

}  // namespace tessera
