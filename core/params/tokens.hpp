#pragma once
#include <cstdint>
#include <utility>

#include "core/layout/layout.hpp"
#include "core/params/access.hpp"
#include "kernels/reduce/reduce.hpp"

namespace tessera {

class Gradients;
class ParamSync;

/// A phase of one step; each phase consumes the token of the one before. Move-only: stepping twice or publishing before
/// stepping does not compile, and use after move throws StateError. Destroying an unspent token drops the gradients;
/// then the step can be made again.
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

/// A pass without gradients (evaluation) under way; its destructor releases the slots of the weight pool. Move-only.
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

/// The masters have changed: the token that ParamSync::publish takes. Made by initialisation, load and the optimizers.
class [[nodiscard]] Updated {
 public:
  Updated(Updated&&) noexcept = default;

 private:
  friend class Masters;
  friend class Clipped;
  friend class ParamSync;
  enum class Weights : std::uint8_t {
    current,   ///< publication outdates them, and makes all of them
    outdated,  ///< and some may have been written by the update: Clipped::claim_weights()
  };
  explicit Updated(Weights weights) : weights_(weights) {}
  Weights weights_;
};

/// Reduced gradients whose clip coefficient has been decided. All weights are outdated: an update may write them.
class [[nodiscard]] Clipped : public Token {
 public:
  Clipped(Clipped&&) noexcept = default;
  /// This rank's slice of a bucket, before clipping; the optimizer multiplies by clip()->coefficient.
  Tensor shard(BucketId bucket) const;
  const ClipResult* clip() const { return clip_; }  ///< on the device
  /// Claims this rank's slice of a bucket's weights, bf16, for the update, which has to write there, with every master,
  /// the master rounded to nearest even; publication then reads no master of this bucket. Empty, and nothing claimed,
  /// where weights travel in another form. Local.
  Tensor claim_weights(BucketId bucket) const;
  /// To be called when the optimizer has stepped: empties the gradients.
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
  /// Outdates all weights: only a publication makes them readable again. Throws StateError while an operand is in use.
  /// Collective over the world.
  Clipped clipped(Stream& stream, const ClipResult* clip) &&;

 private:
  friend class Accumulating;
  explicit Reduced(Gradients& gradients) : Token(gradients) {}
};

/// Gradient accumulation under way: contributions of micro-batches are being summed.
class [[nodiscard]] Accumulating : public Token, public GradientSink {
 public:
  Accumulating(Accumulating&&) noexcept = default;

  Gradient slot(ParamId param) override;
  void written(Stream& stream, ParamId param) override;
  /// Begins the reductions that backward has not begun yet, and waits for all of them. Collective over the world.
  Reduced reduce(Stream& stream) &&;

 private:
  friend class ParamSync;
  explicit Accumulating(Gradients& gradients) : Token(gradients) {}
};

}  // namespace tessera
