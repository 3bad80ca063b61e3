#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/comm/mesh.hpp"
#include "core/params/gradients.hpp"
#include "core/params/masters.hpp"
#include "core/params/slots.hpp"
#include "core/params/sync_rules.hpp"
#include "core/params/sync_schedule.hpp"
#include "core/params/tokens.hpp"
#include "core/params/weights.hpp"
#include "core/params/writes.hpp"

namespace tessera {

/// Numbers of collectives that overlapped: other work was launched before anything waited for them.
struct Overlapped {
  std::int64_t gathers = 0, reductions = 0;
};

/// Synchronises weights and gradients between ranks: executes a SyncSchedule, whatever the sharding. All-gathers
/// weights (with prefetch), accumulates gradients over micro-batches and reduce-scatters them. Owns the groups and
/// slots, and is the only caller of their machines' to(), of a Wire, and of the collectives of weights and gradients.
class ParamSync {
 public:
  ParamSync(Device& device, const ParamRegistry& registry, const ParamLayout& layout, SyncSchedule schedule,
            const Masters& masters, Mesh& mesh, const SyncRules& rules);
  ParamSync(const ParamSync&) = delete;
  ParamSync& operator=(const ParamSync&) = delete;

  Weights& weights() { return weights_; }
  const Weights& weights() const { return weights_; }
  Gradients& gradients() { return gradients_; }

  /// Begins gradient accumulation. All groups must be Empty; every micro-batch asks for weights in the order of the dry
  /// pass. Local. The returned token's reduce() is collective over the world.
  Accumulating accumulate();

  /// Begins a pass without gradients (evaluation), which asks for weights in the order of the dry pass. Opens every
  /// resident visit. Collective over the world.
  Forward forward(Stream& stream);

  /// Makes new weights from updated masters: invalidates every weight, unless the update has, and stages it. With
  /// overlap the next forward all-gathers them, visit by visit; without, every resident visit is opened here.
  /// Collective over the world.
  void publish(Stream& stream, Updated&& updated);

  /// Opens every resident visit, in order. Collective over the world.
  void settle(Stream& stream);

  /// Calls see(array) for every stored array of weights, whole: settles, then opens the schedule's inspection, visit by
  /// visit. Collective over the world.
  void inspect(Stream& stream, const std::function<void(const Plane&)>& see);

  /// States of all machines, without epochs: the part of this object's state that a captured step depends on. Local.
  std::vector<std::uint8_t> state() const;
  /// Sets this object's state to that behind one more step as it was captured, accumulate() to publish(): to be called
  /// when its graph has been replayed. Local.
  void replayed();

 private:
  friend class Weights;
  friend class Gradients;
  friend class Forward;

  /// A reduction under way.
  struct Flight {
    const Reduction* reduction = nullptr;
    Pending pending;
    std::int64_t launches_before = 0;
  };

  void make_wires(const Masters& masters);
  void open_buffers();
  void visit_planes(const ParamGroup& group, const Held& held, const std::function<void(const Plane&)>& see) const;
  ParamGroup& group_of(ParamId param) { return groups_[layout_.group_of(param)]; }
  const ParamBucket& bucket(BucketId id) const { return *buckets_[id]; }
  WeightState weights_of(const ParamGroup& group) const;

  // Weights.
  Operand operand(Stream& stream, ParamId param, Side side);
  WeightSlot& slot_of(const Visit& visit) { return slots_[visit.pool][static_cast<std::size_t>(visit.slot)]; }
  bool in_transit(const ParamGroup& group) const;
  const ParamGroup* ring_holder(const ParamGroup& group) const;
  void open(Stream& stream, PoolId pool);
  void open_staged(Stream& stream, PoolId pool);
  void stage_with_gather(Stream& stream, const Visit& visit);
  void start_gather(Stream& stream, const Visit& visit);
  void finish_gather(Stream& stream, const Visit& visit);
  void close(const Visit& visit);
  void begin_pass(const Visits& visits);
  void end_pass();
  void invalidate(Stream& stream);
  void release_claims();
  void require_unused_staging() const;
  void agree(Stream& stream);
  void stage(Stream& stream, std::span<const GroupId> groups);

  // Gradients.
  Gradient slot(ParamId param);
  void written(Stream& stream, ParamId param);
  void reduce(Stream& stream);
  void drop();
  void release();
  void claim_gradients(Stream& stream, const ParamGroup& group);
  void begin_round(const ParamGroup& group);
  void start_reduction(Stream& stream, ParamGroup& group);
  void add_up_alone(Stream& stream, const Reduction& reduction);
  void add_up(Stream& stream, const Reduction& reduction, std::span<const Exchange> received);
  void finish_oldest_reduction(Stream& stream);
  void fill_unwritten(Stream& stream, const ParamBucket& own);
  void restart();

  Device& device_;
  const ParamLayout& layout_;
  const ParamRegistry& registry_;
  Mesh& mesh_;
  const SyncSchedule schedule_;
  SyncRules rules_;
  bool opened_ = false;                       ///< whether open_buffers() has run
  std::vector<std::unique_ptr<Wire>> wires_;  ///< declared before slots_, whose pending collectives refer to them
  IndexedBy<GroupId, ParamGroup> groups_;
  IndexedBy<BucketId, ParamBucket*> buckets_;
  IndexedBy<PoolId, std::vector<WeightSlot>> slots_;
  PassCursor cursor_;                ///< resident pools: since the last publication; transient ones: the pass under way
  std::vector<GroupId> published_;   ///< groups that are staged at a publication
  std::vector<Exchange> agreement_;  ///< memory of agree(), kept so that a step allocates nothing
  Weights::Observer observer_;

  Writes writes_;
  std::array<Flight, receive_slots> flights_;
  std::size_t oldest_ = 0, in_flight_ = 0;
  std::vector<Event> sent_;  ///< by gradient slot: behind the last sum of its gradients, when it is free again
  Event summed_;             ///< behind the last local sum of the step

  Overlapped overlapped_;   ///< so far
  Overlapped in_a_replay_;  ///< in the step that was captured

  Weights weights_;
  Gradients gradients_;
};

}  // namespace tessera
