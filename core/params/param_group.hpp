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

/// One bucket of a group, on this rank.
struct ParamBucket {
  BucketId id;
  Planes planes;           ///< its weights
  Wire* wire = nullptr;    ///< how they travel
  Tensor gradients;        ///< fp32 [size]
  Tensor gradients_slice;  ///< this rank's part of them: the sum over ranks once Reduced
};

/// A group of buckets, the unit of all-gather and reduce-scatter: what is true of it now. ParamSync's own.
struct ParamGroup {
  GroupId id;
  ProcessGroup processes = ProcessGroup::dense;
  RankIn place;  ///< this rank's in it
  std::vector<ParamBucket> buckets;

  WeightMachine weights;
  std::vector<Exchange> all_gather;  ///< every array that travels
  Pending gather;
  std::int64_t launches_before_gather = 0;
  int uses = 0;  ///< operands that are in use
  GroupId next;  ///< first used after this one: its all-gather is begun before this one's is awaited (prefetch)

  GradientMachine gradients;
  std::array<std::vector<Exchange>, receive_slots> reduction;  ///< by receive slot, of one process: empty
  int unfinished = 0;  ///< parameters whose last contribution of the step is still to come
};

/// The groups of a layout with the memory of their weights and gradients, and two receive slots: each ranks x this
/// rank's slices, for the group that needs most. Allocates; local.
IndexedBy<GroupId, ParamGroup> allocate_groups(Device& device, const ParamLayout& layout, const Ranks& ranks,
                                               ReduceOrder order);

}  // namespace tessera
