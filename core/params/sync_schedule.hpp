#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/comm/communicator.hpp"
#include "core/params/planes.hpp"
#include "core/params/two_ended.hpp"
#include "core/params/usage.hpp"

namespace tessera {

/// Numbers of a pool, and of a visit in its list.
struct PoolId {
  int value = -1;
  bool operator==(const PoolId&) const = default;
};
struct VisitId {
  int value = -1;
  bool operator==(const VisitId&) const = default;
};

/// How long a slot keeps what it holds. resident: weights until the next publication, gradients for the whole step;
/// transient: weights until the pool's next visit, gradients until their reduction.
enum class Residency : std::uint8_t { resident, transient };
constexpr const char* name_of(Residency r) { return r == Residency::resident ? "resident" : "transient"; }

/// Slots for gathered weights. The visits of one pool are open one at a time, in the order of their list.
struct Pool {
  ProcessGroup processes = ProcessGroup::dense;
  Residency residency = Residency::resident;
  int slots = 1;
  Level level = Level::inside;  ///< over which ranks its visits gather. across: shards, from which visits inside gather
  bool operator==(const Pool&) const = default;
};

/// Largest number of groups whose bf16 is staged at once in the ring. The i-th resident visit takes ring slot i mod
/// ring_slots.
inline constexpr int ring_slots = 2;

/// When a group's shards are rounded for the all-gather. At the publication, or just before the gather starts, since
/// another group's bf16 occupies the ring slot until then.
enum class StagedAt : std::uint8_t { publication, gather };
constexpr const char* name_of(StagedAt s) { return s == StagedAt::publication ? "publication" : "gather"; }

/// One stay of a group's gathered weights in a slot.
struct Visit {
  GroupId group;
  Sides sides = Sides::none;  ///< payloads that are gathered; plain values travel with every visit
  PoolId pool;
  int slot = 0;
  int micro_batch = 0;  ///< of its first access
  int access = 0;       ///< number of its first access in that micro-batch
  Half half = Half::forward;
  VisitId next;  ///< the pool's next visit in the list, whose opening closes this one; none: a publication, or the end
                 ///< of a pass, closes it
  VisitId prefetch;  ///< the visit whose gather starts before this one's is awaited; none: no prefetch
  StagedAt staged = StagedAt::publication;
  bool operator==(const Visit&) const = default;

  /// A visit that has no slot yet.
  static Visit to(GroupId group, Sides sides, int access = 0, Half half = Half::forward) {
    Visit visit;
    visit.group = group;
    visit.sides = sides;
    visit.access = access;
    visit.half = half;
    return visit;
  }
  /// Whether an access to `asked` that needs `needed` can use this visit's weights.
  bool serves(GroupId asked, Sides needed) const { return group == asked && contains(sides, needed); }
};
using Visits = IndexedBy<VisitId, Visit>;

/// Positions in lists of visits, pool by pool.
class PassCursor {
 public:
  explicit PassCursor(int pools) : positions_(pools) {}
  /// Begins `visits` in those of its pools that follow no list: nothing is open, and the pool's first visit comes next.
  /// `visits` must outlive the positions.
  void begin(const Visits& visits) {
    for (VisitId visit : visits.ids()) {
      Position& position = positions_[visits[visit].pool];
      if (!position.visits) position = {&visits, {}, visit};
    }
  }
  void clear(PoolId pool) { positions_[pool] = {}; }

  /// The open visit, and the one that comes next; null: none.
  const Visit* open(PoolId pool) const { return at(pool, positions_[pool].open); }
  const Visit* upcoming(PoolId pool) const { return at(pool, positions_[pool].upcoming); }
  /// A visit of the list that the pool follows; null for none.
  const Visit* at(PoolId pool, VisitId visit) const {
    return visit == VisitId{} ? nullptr : &(*positions_[pool].visits)[visit];
  }
  void advance(PoolId pool) {
    Position& position = positions_[pool];
    position.open = position.upcoming;
    position.upcoming = (*position.visits)[position.open].next;
  }

 private:
  struct Position {
    const Visits* visits = nullptr;
    VisitId open, upcoming;
  };
  IndexedBy<PoolId, Position> positions_;
};

/// Memory for the whole gradients of the groups that take turns in it, from a round's first write to its exchange.
struct GradientSlot {
  Residency residency = Residency::resident;
  int memory = 0;             ///< number of the memory in which it lies, alone or with a slot at the other end
  std::int64_t elements = 0;  ///< of that memory
  End end = End::low;
  bool operator==(const GradientSlot&) const = default;
  /// Whether the shard of the group that it holds lies in it.
  bool holds_shard() const { return residency == Residency::resident; }
};

/// What a reduction does with the gradient shard: assign the sum over ranks, or add rank after rank onto the running
/// sum of the rounds before.
enum class SumInto : std::uint8_t { assign, add };
constexpr const char* name_of(SumInto s) { return s == SumInto::assign ? "assign" : "add"; }
/// When a reduction starts: with the last write to the group's last parameter, or at the end of the step, in the order
/// of groups.
enum class BeginAt : std::uint8_t { last_write, end_of_step };
constexpr const char* name_of(BeginAt b) { return b == BeginAt::last_write ? "last write" : "end of step"; }

/// One sum of a group's gradients over ranks.
struct Reduction {
  GroupId group;
  int round = 0;          ///< number among the group's reductions of a step
  int micro_batches = 1;  ///< that are added up locally before it; 0: nothing is written, zeros are summed
  int slot = 0;           ///< number of its GradientSlot
  SumInto sum = SumInto::assign;
  BeginAt begin = BeginAt::last_write;
  VisitId after;  ///< the resident visit whose bf16 is staged in that slot, and which is opened before the first write
  int idle = 0;   ///< the last ranks of the process group, whose gradients are those of padding: left out of the sum
  bool operator==(const Reduction&) const = default;
};

/// All that is gathered, released and summed in a step, in order. A pure value, the same on all ranks (hash()): no
/// address, byte or number of a rank is in it. ParamSync executes it; plans print it.
struct SyncSchedule {
  IndexedBy<PoolId, Pool> pools;
  IndexedBy<GroupId, PoolId> pool_of;
  IndexedBy<GroupId, PoolId> shard_pool_of;  ///< pools of level across; empty unless there are several sharding groups
  Visits shards;  ///< stays of shards gathered across sharding groups: as `resident`, but for every group. A visit's
                  ///< gather opens that of its group's shard first
  Visits resident;              ///< once between two publications, by first use; groups that nothing uses come last
  Visits training, evaluation;  ///< of transient pools, in one pass, unrolled: all micro-batches of a step
  Visits inspection;            ///< every payload of every group, one after another, in the order of first use
  std::vector<GradientSlot> gradient_slots;
  std::vector<Reduction> reductions;      ///< in the order in which they start
  std::vector<ProcessGroup> amaxes;       ///< process groups that agree on amaxes at a publication
  IndexedBy<ParamId, int> contributions;  ///< to each gradient, in one micro-batch

  const GradientSlot& slot_of(const Reduction& one) const { return gradient_slots[static_cast<std::size_t>(one.slot)]; }
  bool resides(GroupId group) const { return pools[pool_of[group]].residency == Residency::resident; }
  std::uint64_t hash() const;
};

/// What a schedule follows from.
struct SyncInputs {
  const Usage& usage;
  const ParamRegistry& registry;
  const ParamLayout& layout;
  const Ranks& ranks;
  const SyncRules& rules;
};

/// The schedule of training steps and evaluations. With sharding `optimizer`, and in process groups of one rank, every
/// group has a pool, a slot and a reduction of its own. With sharding `full` the groups of a process group share two
/// slots for weights. They share the fewest slots for gradients with which one group can be reduced while the next
/// accumulates. So they share slots for gradients, whatever the sharding, if each micro-batch is reduced by itself.
SyncSchedule schedule_of(const SyncInputs& of);

/// Elements of a group's whole gradients, in whole vectors.
std::int64_t gradient_elements(const ParamLayout& layout, GroupId group);
/// Whether two reductions' whole gradients lie in the same memory, and there meet.
bool meet(const SyncSchedule& schedule, const ParamLayout& layout, const Reduction& one, const Reduction& other);

/// The payload that must have been gathered for an access.
Sides payload_of(const Access& access, const ParamLayout& layout, const WeightRules& rules);

/// The visits of one pass over a micro-batch as if all groups were transient, ordered by their first accesses. A
/// maximal run of accesses to one module or block (BucketGroup::unit) is one visit of each group in it. It is two
/// visits if the copies travel apart and all accesses to one copy come before all to the other. Pure.
std::vector<Visit> visits_of(std::span<const Access> accesses, const ParamLayout& layout, const WeightRules& rules);

/// Sentences on what is wrong with a schedule for this usage. Such are an access that no visit serves, neighbours or a
/// prefetch in an occupied slot, rounds that do not add up, gradients meeting in a slot. Empty for every schedule_of().
/// Pure.
std::vector<std::string> check(const SyncSchedule& schedule, const SyncInputs& of);

/// One collective of weights or gradients.
struct PlannedCollective {
  Collective collective = Collective::all_gather;
  GroupId group;  ///< none: amaxes
  bool operator==(const PlannedCollective&) const = default;
};

/// The collectives of weights, gradients and amaxes in one step, in order: from behind one publication to behind the
/// next. Without those that pass running sums from one sharding group to the next, which follow the all-to-alls. Pure.
std::vector<PlannedCollective> collectives_of(const SyncSchedule& schedule, const SyncInputs& of);

}  // namespace tessera
