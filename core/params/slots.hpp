#pragma once
#include <array>
#include <vector>

#include "core/comm/communicator.hpp"
#include "core/params/state.hpp"
#include "core/params/sync_schedule.hpp"
#include "core/params/wires/wire.hpp"
#include "kernels/reduce/reduce.hpp"

/// Groups of buckets with their memory: slots for gathered weights and for whole gradients, shards, receive slots and
/// the ring. Slots are planned, so that a group's addresses never change and steps can be captured. Two slots of which
/// the groups take turns are the ends of one memory (two_ended.hpp).
namespace tessera {

/// Largest number of reductions in flight, each with a receive slot of its own (double buffering). The two slots are
/// the ends of one memory.
inline constexpr std::size_t receive_slots = 2;
/// Largest number of running sums on their way from sharding group to sharding group: as many groups work at once. Each
/// has a slot of its own.
inline constexpr int most_running_sums = 4;

/// One bucket of a group, on this rank.
struct ParamBucket {
  BucketId id;
  Travel travel = Travel::plain;  ///< how its weights are held and travel
  std::vector<Planes> places;     ///< the weights in each slot of the group's pool
  Tensor staged;                  ///< bf16 staged for the all-gather; Travel::bf16 alone
  Wire* wire = nullptr;           ///< moves them
  Tensor gradients;               ///< fp32 [size], in the group's gradient slot
  Tensor gradient_shard;          ///< this rank's slice: the sum over ranks once Reduced
};

/// A slot for gathered weights, with its present state.
struct WeightSlot {
  SlotMachine machine;
  const Visit* visit = nullptr;     ///< whose weights it holds, unless it is free
  std::vector<Exchange> exchanges;  ///< buffers of the all-gather; kept, so that a step allocates nothing
  Pending gather;
  std::int64_t launches_before = 0;
};

/// Where a group's bf16 is staged between stage and post-processing. Nowhere; or in the first halves of its own
/// gradients, which nothing else may write meanwhile; or in a slot of the ring.
enum class StagedIn : std::uint8_t { nothing, gradients, ring };

/// Memory for a group's gradients in a reduction, bucket after bucket. What a rank sends, its own part included, is
/// rounded to the bucket's wire; gradients in fp32 are sent from where they are.
struct ReductionMemory {
  std::vector<WireArray> sent;      ///< whole gradients, [size]
  std::vector<SumTerms> terms;      ///< this rank's part of `sent`, and those of the others that have arrived
  std::vector<Exchange> exchanges;  ///< of the all-to-all; none for one process
  Interval interval;                    ///< in the memory of both receive slots, in bytes; the same on all ranks
};

/// A group of buckets, the unit of all-gather and reduce-scatter, with its present state. ParamSync's own.
struct ParamGroup {
  GroupId id;
  ProcessGroup processes = ProcessGroup::dense;
  RankIn rank;     ///< this rank among those of its sharding group that share the parameters
  PoolId pool;
  PoolId shard_pool;  ///< none unless there are several sharding groups
  std::vector<ParamBucket> buckets;

  WeightMachine weights;
  StagedIn staged_in = StagedIn::nothing;
  std::size_t ring_slot = 0;
  int uses = 0;  ///< operands that are in use

  GradientMachine gradients;
  std::array<ReductionMemory, receive_slots> reduction;  ///< by receive slot; one process uses the first
  /// By slot for running sums: fp32 [shard], bucket after bucket; empty unless there are several sharding groups.
  std::vector<std::vector<Tensor>> sums;
};

/// Makes the groups of a layout with all their memory. Allocates. Local.
IndexedBy<GroupId, ParamGroup> allocate_groups(Device& device, const ParamRegistry& registry,
                                               const ParamLayout& layout, const Ranks& ranks,
                                               const SyncSchedule& schedule, const SyncRules& rules);

/// Calls see(array) for every stored array of a group that is valid while `held` is Ready.
void visit_planes(const ParamLayout& layout, const ParamGroup& group, const Gathered& held,
                  const std::function<void(const Plane&)>& see);

}  // namespace tessera
