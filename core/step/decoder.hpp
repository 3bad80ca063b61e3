#pragma once
#include <functional>
#include <span>
#include <vector>

#include "core/step/built_model.hpp"

namespace tessera {

/// Text generation: a model's weights, no gradients, and the key/value cache of one sequence. One a rank: every rank
/// holds the whole model, and all call the same functions with the same arguments. Takes a plan of resolve_decoding().
class Decoder {
 public:
  /// Largest number of tokens in one pass.
  static constexpr std::int64_t most_at_once = 256;

  /// `mesh` must connect the ranks that were planned for (else Error{internal}).
  Decoder(Device& device, const StepPlan& plan, Mesh& mesh);

  /// Draws the initial weights, then calls `fill` to overwrite them; passes exceptions of `fill` on. Collective over
  /// the world.
  void initialise(const std::function<void(StateDict&)>& fill);

  /// Appends ids to the sequence; returns the logits [V] of the token that follows. A long piece is divided into passes
  /// of powers of two, so that products have few shapes, all of them planned. Waits for the device. Collective over the
  /// world.
  std::vector<float> extend(std::span<const std::int32_t> ids);
  /// Empties the sequence. Local.
  void restart() { sequence_.length = 0; }

  std::int64_t length() const { return sequence_.length; }
  std::int64_t capacity() const { return sequence_.capacity(); }

 private:
  Device& device_;
  const StepPlan& plan_;
  Stream& stream_;
  BuiltModel built_;
  Sequence sequence_;
  Tensor ids_, logits_, digests_;
};

}  // namespace tessera
