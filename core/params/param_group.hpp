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

/// One bucket of a group, on this rank.
struct ParamBucket {
  BucketId id;
  Way way = Way::values;   ///< how its weights are held and travel
  Planes planes;           ///< they
  Tensor staged;           ///< where their bf16 waits for the all-gather; Way::source alone
  Wire* wire = nullptr;    ///< what moves them
  Tensor gradients;        ///< fp32 [size]
  Tensor gradients_slice;  ///< this rank's part of them: the sum over ranks once Reduced
};

/// Where a group's staged bf16 lies from stage to consume: nowhere, in the first halves of its own gradients, which it
/// leases for that time, or in a slot of the ring.
struct Staging {
  enum class Place : std::uint8_t { none, gradients, ring } place = Place::none;
  int slot = 0;
};

/// A group of buckets, the unit of all-gather and reduce-scatter, with its present state. ParamSync's own.
struct ParamGroup {
  GroupId id;
  ProcessGroup processes = ProcessGroup::dense;
  RankIn place;  ///< this rank's in it
  std::vector<ParamBucket> buckets;

  WeightMachine weights;
  Staging staging;
  std::vector<Exchange> all_gather;  ///< every array that travels
  Pending gather;
  std::int64_t launches_before_gather = 0;
  int uses = 0;  ///< operands that are in use
  GroupId next;  ///< first used after this one: its all-gather is begun before this one's is awaited (prefetch)

  /// Staged bytes are still to be consumed.
  bool in_transit() const {
    const WeightState state = weights.state();
    return state != WeightState::ready && state != WeightState::stale;
  }
  /// Staged bytes lie in the gradients, which nothing else may write.
  bool leased() const { return staging.place == Staging::Place::gradients && in_transit(); }

  GradientMachine gradients;
  std::array<std::vector<Exchange>, receive_slots> reduction;  ///< by receive slot, of one process: empty
  int unfinished = 0;  ///< parameters whose last contribution of the step is still to come
};

/// The groups of a layout with the memory of their weights and gradients, and two receive slots: each ranks x this
/// rank's slices, for the group that needs most. Nothing has a place for staging yet. Allocates; local.
IndexedBy<GroupId, ParamGroup> allocate_groups(Device& device, const ParamRegistry& registry,
                                               const ParamLayout& layout, const Ranks& ranks, const SyncRules& rules);

/// Finds places for the bf16 that is staged of weights: `order` is that of prefetch, and group i of it takes slot
/// i mod 2 of a ring. Allocates; local.
void place_staging(Device& device, const ParamLayout& layout, IndexedBy<GroupId, ParamGroup>& groups,
                   std::span<const GroupId> order, GatherStaging how);

}  // namespace tessera
