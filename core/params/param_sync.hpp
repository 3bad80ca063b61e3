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
#include "core/params/weights.hpp"

namespace tessera {

/// Keeps weights and gradients of all ranks in step: the deep module of the trainer. Owns the groups, and is the only
/// caller of their machines' to(), of a Wire, and of the collectives of weights and gradients.
class ParamSync {
 public:
  ParamSync(Device& device, const ParamRegistry& registry, const ParamLayout& layout, const Usage& usage,
            const Masters& masters, Mesh& mesh, const SyncRules& rules);

  Weights& weights() { return weights_; }
  const Weights& weights() const { return weights_; }
  Gradients& gradients() { return gradients_; }

  /// The step's gradients, all Empty before. Local; the token's reduce() is collective over the world.
  Accumulating accumulate() { return Accumulating(gradients_); }

  /// After an update of the masters: outdates and stages every weight. With overlap the next forward all-gathers,
  /// group by group; without, every group is gathered and consumed here. Collective over the world.
  void publish(Stream& stream, Updated&& updated);

  /// Brings every group's weights to Ready. Collective over the world.
  void settle(Stream& stream);

  /// Where every group's two machines stand, epochs aside: what a step does depends on nothing else here.
  std::vector<std::uint8_t> state() const;

 private:
  friend class Weights;
  friend class Gradients;

  /// Contributions to one parameter's gradient.
  struct Contributions {
    int expected = 0;  ///< of one step
    int written = 0;
  };
  /// A reduction under way.
  struct Flight {
    ParamGroup* group = nullptr;
    Pending pending;
    std::int64_t launches_before = 0;
  };

  void make_wires(const Masters& masters);
  void order_groups(const Usage& usage);
  ParamGroup& group_of(ParamId param) { return groups_[layout_.group_of(param)]; }
  const ParamBucket& bucket(BucketId id) const { return *buckets_[id]; }

  // Weights.
  Operand operand(Stream& stream, ParamId param, Side side);
  void walk_to_ready(Stream& stream, ParamGroup& group);
  void conclude(Stream& stream, ParamGroup& group);
  ParamGroup* slot_holder(const ParamGroup& group);
  void end_lease(Stream& stream, ParamGroup& group);
  void outdate(Stream& stream);
  void agree(Stream& stream);
  void stage(Stream& stream, std::span<const GroupId> groups);
  void begin_gather(Stream& stream, ParamGroup& group);
  void finish_gather(Stream& stream, ParamGroup& group);

  // Gradients.
  Gradient slot(ParamId param);
  void written(Stream& stream, ParamId param);
  void reduce(Stream& stream);
  void drop();
  void release();
  void begin_reduction(Stream& stream, ParamGroup& group);
  void finish_oldest_reduction(Stream& stream);
  void fill_unwritten(Stream& stream, const ParamBucket& own);
  void restart();

  Device& device_;
  const ParamRegistry& registry_;
  const ParamLayout& layout_;
  Mesh& mesh_;
  SyncRules rules_;
  std::vector<std::unique_ptr<Wire>> wires_;  ///< before the groups: what they have in flight refers to them
  IndexedBy<GroupId, ParamGroup> groups_;
  IndexedBy<BucketId, ParamBucket*> buckets_;
  std::vector<GroupId> order_;       ///< by first use; every group once
  std::vector<GroupId> staging_;     ///< memory of stage(), kept so that a step allocates nothing
  std::vector<Exchange> agreement_;  ///< likewise of agree()
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
