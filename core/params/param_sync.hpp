#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/comm/mesh.hpp"
#include "core/params/masters.hpp"
#include "core/params/pending_reductions.hpp"
#include "core/params/rounds.hpp"
#include "core/params/slots.hpp"
#include "core/params/sync_rules.hpp"
#include "core/params/sync_schedule.hpp"
#include "core/params/tokens.hpp"

namespace tessera {

/// Synchronises weights and gradients between ranks: executes a SyncSchedule, whatever the sharding. All-gathers
/// weights (with prefetch), accumulates gradients over micro-batches and reduce-scatters them. Owns the groups and
/// slots, and is the only caller of their machines' to(), of a Wire, and of the collectives of weights and gradients.
/// As a WeightSource it gives Q(bf16(master)) of every parameter, of the masters' epoch, on every rank; tokens reach
/// its gradients.
class ParamSync final : public WeightSource, private GradientSync {
 public:
  ParamSync(Device& device, const ParamRegistry& registry, const ParamLayout& layout, SyncSchedule schedule,
            const Masters& masters, Mesh& mesh, const SyncRules& rules);
  ParamSync(const ParamSync&) = delete;
  ParamSync& operator=(const ParamSync&) = delete;

  Use operand(Stream& stream, ParamId param, Side side) override;

  /// Begins gradient accumulation. All groups must be Empty; every micro-batch asks for weights in the order of the dry
  /// pass. Random numbers of stochastic rounding follow from `key`. Local. The returned token's reduce() is collective
  /// over the world.
  Accumulating accumulate(const WireKey& key = {});

  /// Begins a pass without gradients (evaluation), which asks for weights in the order of the dry pass. Opens every
  /// resident visit. Collective over the world.
  Forward forward(Stream& stream);

  /// Makes new weights from updated masters: invalidates every weight, unless the update has, and stages it. With
  /// overlap the next forward all-gathers them, visit by visit; without, every resident visit is opened here.
  /// Collective over the world.
  void publish(Stream& stream, Updated&& updated);

  /// Opens every resident visit, in order. Collective over the world.
  void unshard_all(Stream& stream);

  /// Calls see(array) for every stored array of weights, whole: settles, then opens the schedule's inspection, visit by
  /// visit. Collective over the world.
  void inspect(Stream& stream, const std::function<void(const Plane&)>& see);

  /// States of all machines, without epochs: the part of this object's state that a captured step depends on. Local.
  std::vector<std::uint8_t> state() const;
  WeightState weight_state(GroupId group) const;
  GradientState gradient_state(GroupId group) const;
  /// A bucket's whole gradients. Their memory may hold other buckets' gradients, or staged bf16.
  const Tensor& gradients(BucketId bucket) const;
  /// Numbers of all-gathers and reductions so far that overlapped.
  Overlapped overlapped() const { return overlaps_.now; }

  /// Calls see(array) for every stored array, in slot 0 of its pool. Contents are valid while the group is Ready there.
  void visit_planes(const std::function<void(const Plane&)>& see) const;
  /// Has `observer` called for each array that has just been gathered or rebuilt on a stream: once a visit.
  using Observer = std::function<void(Stream& stream, const Plane& array)>;
  void observe(Observer observer) { observer_ = std::move(observer); }
  bool observed() const { return static_cast<bool>(observer_); }

  /// Sets this object's state to that behind one more step as it was captured, accumulate() to publish(): to be called
  /// when its graph has been replayed. Local.
  void replayed();

 private:
  void make_wires(const Masters& masters);
  void open_buffers();
  ParamGroup& group_of(ParamId param) { return groups_[layout_.group_of(param)]; }

  // Weights.
  void ended(ParamId param) noexcept override { --group_of(param).uses; }  // mutation: released_before_the_last_access
  WeightSlot& slot_of(const Visit& visit) { return slots_[visit.pool][static_cast<std::size_t>(visit.slot)]; }
  bool in_transit(const ParamGroup& group) const;
  const ParamGroup* ring_holder(const ParamGroup& group) const;
  void open(Stream& stream, PoolId pool);
  void open_shard(Stream& stream, const ParamGroup& group);
  void open_staged(Stream& stream, PoolId pool);
  void stage_with_gather(Stream& stream, const Visit& visit);
  void start_gather(Stream& stream, const Visit& visit);
  void finish_gather(Stream& stream, const Visit& visit);
  void close(const Visit& visit);
  void end_pass() override;
  void invalidate(Stream& stream) override;
  void reduce_amaxes(Stream& stream);
  void stage(Stream& stream, std::span<const GroupId> groups);

  // Gradients.
  Gradient slot(ParamId param) override;
  void written(Stream& stream, ParamId param) override;
  void reduce(Stream& stream) override;
  int buckets() const override;
  const Tensor& shard(BucketId bucket) const override;
  Tensor claim(BucketId bucket) override;
  void drop() override;
  void claim_gradients(Stream& stream, const ParamGroup& group);
  void start_reduction(Stream& stream, ParamGroup& group);

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
  std::vector<Exchange> agreement_;  ///< memory of reduce_amaxes(), kept so that a step allocates nothing
  Observer observer_;
  OverlapCounts overlaps_;
  Rounds rounds_;
  PendingReductions pending_;
};

}  // namespace tessera
