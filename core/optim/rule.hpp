#pragma once
#include <functional>
#include <vector>

#include "core/config/choices.hpp"
#include "core/params/masters.hpp"
#include "core/params/tokens.hpp"
#include "core/state/state_dict.hpp"

namespace tessera {

/// The element type of a deck's `moments`.
constexpr DType type_of(Moments moments) { return moments == Moments::bf16 ? DType::bf16 : DType::f32; }

/// Device memory of a step that rules read and write, at the same addresses every step (captured graphs hold them).
struct RulePlaces {
  const float* rate;  ///< the step's learning rate
  Tensor counters;    ///< i64, one 64-bit word each, in the order of visit_counters(); travels down with the report
};

/// The update rule of an optimizer, for some buckets. Owns their optimizer state; touches no other bucket.
class Rule {
 public:
  using SlotVisitor = std::function<void(const StateSlot&)>;
  using CounterVisitor = std::function<void(const RuleCounter&)>;

  virtual ~Rule() = default;

  /// The buckets that it steps, ascending.
  const std::vector<BucketId>& buckets() const { return buckets_; }

  /// Writes the slots of a fresh run. Orders on `stream`. Local.
  virtual void initialise(Stream& stream) = 0;

  /// Updates this rank's masters of its buckets, and the weights that it claims by gradients.weight_shard(), from
  /// clipped gradients, which it may overwrite. Advances its counters. The number of launches does not grow with the
  /// number of parameters, except for matrix products: batched on a GPU, one by one on the host. A step whose clip()
  /// says skip changes nothing. Masters and gradients must keep their addresses from step to step. Orders on `stream`.
  /// Local.
  virtual void step(Stream& stream, const Clipped& gradients, const Masters& masters, const RulePlaces& places) = 0;

  /// Visits its state slots, each over the parameters of its own buckets: their only list.
  virtual void visit_state(const SlotVisitor& visit) const = 0;
  /// Visits its counters, with the values of a fresh run: their only list.
  virtual void visit_counters(const CounterVisitor& visit) const = 0;

 protected:
  explicit Rule(std::vector<BucketId> buckets) : buckets_(std::move(buckets)) {}

 private:
  std::vector<BucketId> buckets_;
};

}  // namespace tessera
