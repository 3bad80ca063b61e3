#pragma once
#include <array>
#include <vector>

#include "core/comm/communicator.hpp"
#include "core/params/state.hpp"
#include "core/params/sync_rules.hpp"
#include "core/params/wires/wire.hpp"

namespace tessera {

/// Reductions in flight at most, each with a receive slot of its own.
inline constexpr std::size_t receive_slots = 2;

/// Groups whose bf16 may be staged at once, where it lies in a ring.
inline constexpr std::size_t ring_slots = 2;

/// Groups of one process group whose weights are whole at once, where ranks keep slices.
inline constexpr std::size_t weight_slots = 2;

/// One bucket of a group, on this rank.
struct ParamBucket {
  BucketId id;
  Way way = Way::values;       ///< how its weights are held and travel
  std::vector<Planes> places;  ///< the weights: in one place for good, or in each slot of the pool
  Tensor staged;               ///< where their bf16 waits for the all-gather; Way::source alone
  Wire* wire = nullptr;        ///< what moves them
  Tensor gradients;            ///< fp32 [size]; of a pool, lent from the first contribution to the reduction
  Tensor gradients_slice;      ///< this rank's part: the sum over ranks once Reduced
};

/// Where a group's staged bf16 lies from stage to consume: nowhere, in the first halves of its own gradients, which it
/// leases for that time, or in a slot of the ring.
struct Staging {
  enum class Place : std::uint8_t { none, gradients, ring } place = Place::none;
  int slot = 0;
};

/// State of a group's weights in one place: for good, or in a slot of the pool.
struct Residence {
  WeightMachine weights;
  Sides sides = Sides::both;        ///< copies that are gathered
  std::vector<Exchange> exchanges;  ///< of the all-gather; kept, so that a step allocates nothing
  Pending gather;
  std::int64_t launches_before_gather = 0;
};

/// A group of buckets, the unit of all-gather and reduce-scatter, with its present state. ParamSync's own.
struct ParamGroup {
  GroupId id;
  ProcessGroup processes = ProcessGroup::dense;
  RankIn place;  ///< this rank's in it
  std::vector<ParamBucket> buckets;

  std::vector<Residence> residences;  ///< one for good, or one for each slot of the pool
  Staging staging;
  int uses = 0;  ///< operands that are in use
  GroupId next;  ///< first used after this one: its all-gather is begun before this one's is awaited (prefetch)

  /// This rank keeps slices alone: weights are whole during a visit, gradients from the first contribution of a
  /// micro-batch to their reduction.
  bool pooled() const { return residences.size() > 1; }
  /// State of weights that lie in one place for good.
  WeightState state() const { return residences.front().weights.state(); }
  /// Staged bytes are still to be consumed.
  bool in_transit() const { return state() != WeightState::ready && state() != WeightState::stale; }
  /// Staged bytes lie in the gradients, which nothing else may write.
  bool leased() const { return staging.place == Staging::Place::gradients && in_transit(); }

  GradientMachine gradients;
  std::array<std::vector<Exchange>, receive_slots> reduction;  ///< by receive slot; empty for one process
  int unfinished = 0;  ///< parameters whose last contribution (of a pool: of the micro-batch) is still to come
  int pool_slot = -1;  ///< where its gradients are lent
  int begun = 0, summed = 0;  ///< of a pool: micro-batches that were written, and that the slices hold
  Event sent;          ///< of a pool: behind the last sum of its gradients; then their slot is free
};

/// Makes the groups of a layout with memory for weights and gradients, and two receive slots, each of ranks x this
/// rank's slices of the group that needs most. Under full sharding groups of several processes get slices of gradients
/// alone; place_weights() and place_gradients() place their pools. Staging has no place yet.
/// Allocates. Local.
IndexedBy<GroupId, ParamGroup> allocate_groups(Device& device, const ParamRegistry& registry,
                                               const ParamLayout& layout, const Ranks& ranks, const SyncRules& rules);

/// Gives each group of several processes its receive slots. Gradients must have their memory. Allocates.
/// Local.
void place_reductions(Device& device, const ParamLayout& layout, IndexedBy<GroupId, ParamGroup>& groups,
                      ReduceOrder order);

/// Finds places for the bf16 that is staged of weights: `order` is that of prefetch, and group i of it takes slot
/// i mod 2 of a ring. Allocates. Local.
void place_staging(Device& device, const ParamLayout& layout, IndexedBy<GroupId, ParamGroup>& groups,
                   std::span<const GroupId> order, GatherStaging how);

}  // namespace tessera
