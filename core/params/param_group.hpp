#pragma once
#include <array>
#include <vector>

#include "core/comm/communicator.hpp"
#include "core/params/state.hpp"
#include "core/params/sync_rules.hpp"
#include "core/params/sync_schedule.hpp"
#include "core/params/wires/wire.hpp"

namespace tessera {

/// Largest number of reductions in flight, each with a receive slot of its own (double buffering).
inline constexpr std::size_t receive_slots = 2;

/// One bucket of a group, on this rank.
struct ParamBucket {
  BucketId id;
  Way way = Way::values;       ///< how its weights are held and travel
  std::vector<Planes> places;  ///< the weights: in one permanent place, or in each slot of the pool
  Tensor staged;               ///< bf16 staged for the all-gather; Way::source alone
  Wire* wire = nullptr;        ///< moves them
  Tensor gradients;            ///< fp32 [size]; pooled: lent from the first contribution to the reduction
  Tensor gradients_slice;      ///< this rank's part: the sum over ranks once Reduced
};

/// Place of a group's staged bf16 between stage and consume: none (nothing is staged), the first halves of its own
/// gradients, which are leased for that time, or a slot of the ring.
struct Staging {
  enum class Place : std::uint8_t { none, gradients, ring } place = Place::none;
  int slot = 0;
};

/// State of a group's weights in one place: permanent, or a slot of the pool.
struct Residence {
  WeightMachine weights;
  Sides sides = Sides::both;        ///< copies that are gathered
  std::vector<Exchange> exchanges;  ///< buffers of the all-gather; kept, so that a step allocates nothing
  Pending gather;
  std::int64_t launches_before_gather = 0;
};

/// A group of buckets, the unit of all-gather and reduce-scatter, with its present state. ParamSync's own.
struct ParamGroup {
  GroupId id;
  ProcessGroup processes = ProcessGroup::dense;
  RankIn place;  ///< this rank in that process group
  std::vector<ParamBucket> buckets;

  std::vector<Residence> residences;  ///< one permanent one, or one for each slot of the pool
  Staging staging;
  int uses = 0;  ///< operands that are in use
  GroupId next;  ///< group first used after this one: its all-gather begins before this one's is awaited (prefetch)

  /// Whether this rank keeps slices only (full sharding): weights are whole during a visit, gradients from the first
  /// contribution of a micro-batch to their reduction.
  bool pooled() const { return residences.size() > 1; }
  /// State of weights in one permanent place.
  WeightState state() const { return residences.front().weights.state(); }
  /// Whether the group has been staged and not yet consumed.
  bool in_transit() const { return state() != WeightState::ready && state() != WeightState::stale; }
  /// Whether staged bytes lie in the gradients, which nothing else may write meanwhile.
  bool leased() const { return staging.place == Staging::Place::gradients && in_transit(); }

  GradientMachine gradients;
  std::array<std::vector<Exchange>, receive_slots> reduction;  ///< by receive slot; empty for one process
  int unfinished = 0;  ///< parameters that still expect a contribution in this step (pooled: in this micro-batch)
  int pool_slot = -1;  ///< pooled: the slot that is lent for its gradients
  int begun = 0, summed = 0;  ///< pooled: micro-batches whose gradients were written; those summed into the slices
  Event sent;          ///< pooled: behind the last sum of its gradients, when their slot is free again
};

/// Makes the groups of a layout, with memory for weights and gradients. Under full sharding, groups of more than one
/// rank get memory for their slices of gradients only; place_weights() and place_gradients() make their pools. Receive
/// slots and staging are placed by the functions below. Allocates. Local.
IndexedBy<GroupId, ParamGroup> allocate_groups(Device& device, const ParamRegistry& registry,
                                               const ParamLayout& layout, const Ranks& ranks, const SyncRules& rules);

/// Gives each group of more than one rank its receive slots. Gradients must have their memory already. Allocates.
/// Local.
void place_reductions(Device& device, const ParamLayout& layout, IndexedBy<GroupId, ParamGroup>& groups,
                      ReduceOrder order);

/// Finds places for the bf16 staged for the all-gather. `order` is the order of prefetch; in a ring, its group i takes
/// slot i mod 2. Allocates. Local.
void place_staging(Device& device, const ParamLayout& layout, IndexedBy<GroupId, ParamGroup>& groups,
                   std::span<const GroupId> order, GatherStaging how);

}  // namespace tessera
