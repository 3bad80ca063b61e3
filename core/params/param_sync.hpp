#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/comm/mesh.hpp"
#include "core/params/gradients.hpp"
#include "core/params/masters.hpp"
#include "core/params/param_group.hpp"
#include "core/params/sync_rules.hpp"
#include "core/params/tokens.hpp"
#include "core/params/usage.hpp"
#include "core/params/visits.hpp"
#include "core/params/weights.hpp"

namespace tessera {

/// Synchronises weights and gradients between ranks: all-gathers weights (with prefetch), accumulates gradients over
/// micro-batches and reduce-scatters them. Owns the groups, and is the only caller of their machines' to(), of a Wire,
/// and of the collectives of weights and gradients.
class ParamSync {
 public:
  ParamSync(Device& device, const ParamRegistry& registry, const ParamLayout& layout, const Usage& usage,
            const Masters& masters, Mesh& mesh, const SyncRules& rules);

  Weights& weights() { return weights_; }
  const Weights& weights() const { return weights_; }
  Gradients& gradients() { return gradients_; }

  /// Begins gradient accumulation. All groups must be Empty; every micro-batch asks for weights in the order of the dry
  /// pass. Local. The returned token's reduce() is collective over the world.
  Accumulating accumulate();

  /// Begins a pass without gradients (evaluation), which asks for weights in the order of the dry pass. Brings every
  /// group in a permanent place to Ready. Collective over the world.
  Forward forward(Stream& stream);

  /// Makes new weights from updated masters: outdates every weight, unless the update has, and stages it. With overlap
  /// the next forward all-gathers them, group by group; without, every group is gathered and consumed here. Collective
  /// over the world.
  void publish(Stream& stream, Updated&& updated);

  /// Brings the weights of every group in a permanent place to Ready. Collective over the world.
  void settle(Stream& stream);

  /// Calls see(array) for every stored array of weights, whole. Settles first; under full sharding all-gathers one copy
  /// of one group at a time, for the duration of its calls. Collective over the world.
  void inspect(Stream& stream, const std::function<void(const Plane&)>& see);

  /// States of every group's two machines, without epochs: the part of this object's state that a captured step depends
  /// on. Local.
  std::vector<std::uint8_t> state() const;

 private:
  friend class Weights;
  friend class Gradients;
  friend class Forward;

  /// Contributions to one parameter's gradient.
  struct Contributions {
    int expected = 0;  ///< in one step; pooled: in one micro-batch
    int written = 0;
  };
  /// A reduction under way.
  struct Flight {
    ParamGroup* group = nullptr;
    Pending pending;
    std::int64_t launches_before = 0;
  };

  void place_pools(const Usage& usage);
  void make_wires(const Masters& masters);
  void open_buffers();
  void order_groups(const Usage& usage);
  void visit_planes(const ParamGroup& group, const Held& held, const std::function<void(const Plane&)>& see) const;
  ParamGroup& group_of(ParamId param) { return groups_[layout_.group_of(param)]; }
  const ParamBucket& bucket(BucketId id) const { return *buckets_[id]; }

  // Weights.
  Operand operand(Stream& stream, ParamId param, Side side);
  void walk_to_ready(Stream& stream, ParamGroup& group);
  void conclude(Stream& stream, ParamGroup& group);
  ParamGroup* slot_holder(const ParamGroup& group);
  void end_lease(Stream& stream, ParamGroup& group);
  void release_claims();
  void require_no_lease() const;
  void outdate(Stream& stream);
  void agree(Stream& stream);
  void stage(Stream& stream, std::span<const GroupId> groups);
  void begin_gather(Stream& stream, ParamGroup& group, const Held& held = {});
  void finish_gather(Stream& stream, ParamGroup& group, int place = 0);

  // Weights in a pool.
  Walk& walk_of(const ParamGroup& group) { return walks_[static_cast<std::size_t>(group.processes)]; }
  int visit(Stream& stream, ParamGroup& group, Sides needed);
  void begin_next_gather(Stream& stream, const Walk& walk);
  void leave(const Walk& walk);
  void release(ParamGroup& group, int place);
  void start_passes(const std::array<std::vector<Visit>, 2>& visits, int passes);
  void end_passes();

  // Gradients.
  Gradient slot(ParamId param);
  void written(Stream& stream, ParamId param);
  void reduce(Stream& stream);
  void drop();
  void release();
  void claim_gradients(Stream& stream, ParamGroup& group);
  void begin_reduction(Stream& stream, ParamGroup& group);
  void add_up(Stream& stream, ParamGroup& group, std::span<const Exchange> received);
  void finish_oldest_reduction(Stream& stream);
  void fill_unwritten(Stream& stream, const ParamBucket& own);
  void restart();
  void restart(ParamGroup& group);

  Device& device_;
  const ParamRegistry& registry_;
  const ParamLayout& layout_;
  Mesh& mesh_;
  SyncRules rules_;
  bool opened_ = false;                       ///< whether open_buffers() has run
  std::vector<std::unique_ptr<Wire>> wires_;  ///< declared before groups_, whose pending collectives refer to them
  IndexedBy<GroupId, ParamGroup> groups_;
  IndexedBy<BucketId, ParamBucket*> buckets_;
  std::array<std::vector<Visit>, 2> training_, evaluation_;  ///< visits of one pass, by process group
  std::array<Walk, 2> walks_;                                ///< of the pass under way, by process group
  std::vector<GroupId> order_;       ///< by first use; every group once
  std::vector<GroupId> staging_;     ///< memory of stage(), kept so that a step allocates nothing
  std::vector<Exchange> agreement_;  ///< memory of agree(), likewise
  Weights::Observer observer_;
  std::int64_t overlapped_gathers_ = 0;

  IndexedBy<ParamId, Contributions> contributions_;
  std::array<Flight, receive_slots> flights_;
  std::size_t oldest_ = 0, in_flight_ = 0;
  Event summed_;  ///< behind the last local sum of the step
  std::int64_t overlapped_reductions_ = 0;

  Weights weights_;
  Gradients gradients_;
};

}  // namespace tessera
