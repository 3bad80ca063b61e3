#include "core/params/slots.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace tessera {
namespace {

using Groups = IndexedBy<GroupId, ParamGroup>;

/// Elements of a rank's shard of a group.
std::int64_t shard_elements(const ParamLayout& layout, const Ranks& ranks, const ParamGroup& group) {
  std::int64_t sum = 0;
  for (const ParamBucket& own : group.buckets) sum += layout.buckets()[own.id].shard(ranks);
  return sum;
}

/// Deals the memory of a reduction from below, aligned for vectors.
class Dealer {
 public:
  explicit Dealer(std::byte* memory) : memory_(memory) {}
  Tensor tensor(DType type, const Shape& shape) {
    Tensor dealt{memory_ ? memory_ + bytes_ : nullptr, type, shape};
    bytes_ += round_up(dealt.bytes(), alignment);
    return dealt;
  }
  /// An array on a wire of this shape, whose last side is whole blocks.
  WireArray array(GradientWire wire, const Shape& shape) {
    const WireTraits traits = traits_of(wire);
    WireArray dealt(tensor(traits.values, shape));
    if (traits.block == 0) return dealt;
    const std::int64_t blocks = shape[-1] / traits.block;
    dealt.scales = tensor(traits.scales, shape.rank() == 1 ? Shape{blocks} : Shape{shape[0], blocks});
    return dealt;
  }
  std::int64_t bytes() const { return bytes_; }

 private:
  static constexpr std::int64_t alignment = 16;
  std::byte* memory_;
  std::int64_t bytes_ = 0;
};

/// This rank's shard of an array on a wire.
WireArray shard_of(const Bucket& bucket, const Ranks& ranks, const WireArray& whole) {
  const std::size_t number = bucket.shard_number(ranks);
  const auto part = [number](const Tensor& array, const RangesByRank& cuts) {
    return array.flat(cuts.begins[number], cuts.counts[number]);
  };
  const bool scaled = traits_of(bucket.key.wire).block > 0;
  return {part(whole.values, bucket.shards), scaled ? part(whole.scales, bucket.block_shards) : Tensor{}};
}

/// Lays out a group's reduction from `memory` on.
void lay_out(const ParamLayout& layout, const Ranks& ranks, const ParamGroup& group, std::byte* memory,
             ReductionMemory& reduction) {
  Dealer dealer(memory);
  reduction = {};
  for (const ParamBucket& own : group.buckets) {
    const Bucket& bucket = layout.buckets()[own.id];
    const GradientWire wire = bucket.key.wire;
    const WireArray sent =
        wire == GradientWire::fp32 ? WireArray(own.gradients) : dealer.array(wire, {bucket.size.value});
    const WireArray others = dealer.array(wire, {group.rank.size - 1, bucket.shard(ranks)});
    reduction.sent.push_back(sent);
    reduction.terms.push_back({shard_of(bucket, ranks, sent), others, group.rank.rank, 0, wire});
    if (group.rank.size == 1) continue;
    // mutation: gradient_to_another_owner
    reduction.exchanges.push_back({sent.values, others.values, bucket.shards.counts, bucket.shards.begins});
    if (traits_of(wire).block == 0) continue;
    const RangesByRank& cuts = bucket.block_shards;
    reduction.exchanges.push_back({sent.scales, others.scales, cuts.counts, cuts.begins});
  }
}

/// Bytes of a group's reduction on the rank that receives most, so that all ranks place reductions alike.
std::int64_t reduction_bytes(const ParamLayout& layout, const ParamGroup& group) {
  Dealer dealer(nullptr);
  for (const ParamBucket& own : group.buckets) {
    const Bucket& bucket = layout.buckets()[own.id];
    const GradientWire wire = bucket.key.wire;
    if (wire != GradientWire::fp32) dealer.array(wire, {bucket.size.value});
    dealer.array(wire, {group.rank.size - 1, std::ranges::max(bucket.shards.counts)});
  }
  return round_up(dealer.bytes(), Arena::alignment);
}

/// The slot of a group's whole gradients, the same in every round; null if the group is never reduced.
const GradientSlot* gradient_slot(const SyncSchedule& schedule, GroupId group) {
  const auto first = std::ranges::find(schedule.reductions, group, &Reduction::group);
  return first == schedule.reductions.end() ? nullptr : &schedule.slot_of(*first);
}

/// Null in a memory that is not there, as on a device that only plans.
std::byte* memory_at(const Tensor& memory, std::int64_t byte) {
  return memory.data ? static_cast<std::byte*>(memory.data) + byte : nullptr;
}

/// Allocates a bucket's gradients: whole ones with the shard in them, or the shard alone.
void allocate_gradients(Device& device, const Bucket& bucket, const Ranks& ranks, bool resident, ParamBucket& own) {
  const Shape elements{resident ? bucket.size.value : bucket.slice(ranks)};
  const Tensor memory = device.allocate(Category::gradients, DType::f32, elements);
  if (resident) own.gradients = memory;
  own.gradient_shard = resident ? bucket.slice(memory, ranks) : memory;
}

bool columns(PlaneKind kind) { return kind == PlaneKind::columnwise || kind == PlaneKind::columnwise_scales; }

/// Bytes that a visit of a group with these payloads takes in a slot.
std::int64_t bytes_of(const ParamRegistry& registry, const ParamLayout& layout, const ParamGroup& group, Sides sides) {
  Arena slot;
  for (const ParamBucket& own : group.buckets) {
    const Bucket& bucket = layout.buckets()[own.id];
    const auto place = [&](PlaneKind kind, DType type, const Shape& shape) {
      const bool here = kind != PlaneKind::amax && holds(bucket.key.format, own.travel, sides, kind);
      return here ? slot.keep(type, shape) : Tensor{};
    };
    const Planes measured(registry, bucket, own.travel, place);
  }
  return slot.peak();
}

/// Places a group's arrays in a slot: plain values, then rowwise arrays from below. Columnwise arrays, if the payloads
/// travel apart, lie from above, so that a visit of one payload leaves the other's memory free. Amaxes, on which ranks
/// agree once a step, have permanent memory outside of the slot.
void put(Device& device, const ParamRegistry& registry, const ParamLayout& layout, ParamGroup& group,
         const Tensor& slot) {
  auto* memory = static_cast<std::byte*>(slot.data);
  Arena below(memory, slot.bytes()), above(memory, slot.bytes());
  std::vector<ParamBucket*> buckets;
  for (ParamBucket& own : group.buckets) buckets.push_back(&own);
  std::ranges::stable_partition(buckets, [](const ParamBucket* own) { return own->travel == Travel::plain; });
  for (ParamBucket* const bucket_of_group : buckets) {
    ParamBucket& own = *bucket_of_group;
    const Bucket& bucket = layout.buckets()[own.id];
    const bool apart = !holds(bucket.key.format, own.travel, Sides::rowwise, PlaneKind::columnwise);
    const auto place = [&](PlaneKind kind, DType type, const Shape& shape) {
      if (kind != PlaneKind::amax) return apart && columns(kind) ? above.temp(type, shape) : below.keep(type, shape);
      return own.places.empty() ? device.allocate(Category::weights, type, shape) : own.places.front()[kind].values;
    };
    own.places.emplace_back(registry, bucket, own.travel, place);
  }
}

/// Makes the groups: weights of resident pools, gradient shards, and whole gradients in resident slots.
Groups groups_of(Device& device, const ParamRegistry& registry, const ParamLayout& layout, const Ranks& ranks,
                 const SyncSchedule& schedule, const SyncRules& rules) {
  Groups groups;
  for (GroupId id : layout.groups().ids()) {
    ParamGroup group;
    group.id = id;
    group.processes = layout.groups()[id].processes;
    group.rank = ranks.of(group.processes, Level::inside);
    group.pool = schedule.pool_of[id];
    if (ranks.sharding.size > 1) group.shard_pool = schedule.shard_pool_of[id];
    group.weights = WeightMachine(id);
    group.gradients = GradientMachine(id);
    for (BucketId b : layout.groups()[id].buckets) {
      const Bucket& bucket = layout.buckets()[b];
      ParamBucket own;
      own.id = b;
      own.travel = travel_of(bucket.key.format, rules.weights);
      if (const GradientSlot* const slot = gradient_slot(schedule, id))
        allocate_gradients(device, bucket, ranks, slot->holds_shard(), own);
      if (schedule.resides(id))
        own.places.push_back(Planes::allocated(device, registry, bucket, own.travel));
      group.buckets.push_back(std::move(own));
    }
    groups.add(std::move(group));
  }
  return groups;
}

/// Bytes of the largest visit of each group in a transient pool, derived copies included.
IndexedBy<GroupId, std::int64_t> bytes_of_visits(const ParamRegistry& registry, const ParamLayout& layout,
                                                 const Groups& groups, const SyncSchedule& schedule) {
  IndexedBy<GroupId, std::int64_t> bytes(groups.size(), 0);
  for (const Visits* visits : {&schedule.training, &schedule.evaluation, &schedule.inspection})
    for (const Visit& visit : *visits) {
      if (schedule.resides(visit.group) || visit.micro_batch > 0) continue;
      std::int64_t& most = bytes[visit.group];
      most = std::max(most, round_up(bytes_of(registry, layout, groups[visit.group], visit.sides), Arena::alignment));
    }
  return bytes;
}

/// Places weights in transient pools. Two slots are the ends of one memory; every group has a place in each.
void place_weights(Device& device, const ParamRegistry& registry, const ParamLayout& layout, Groups& groups,
                   const SyncSchedule& schedule) {
  const IndexedBy<GroupId, std::int64_t> bytes = bytes_of_visits(registry, layout, groups, schedule);
  const auto room = [&](PoolId pool, int low) {
    std::int64_t most = 0;
    for (const Visits* visits : {&schedule.training, &schedule.evaluation, &schedule.inspection}) {
      std::vector<Tenant> tenants;
      std::array<std::int64_t, 2> free{};  // of each slot: the visit that closes the one in it
      for (VisitId id : visits->ids()) {
        const Visit& visit = (*visits)[id];
        if (visit.pool != pool || (visit.slot != low && visit.slot != low + 1)) continue;
        std::int64_t& from = free[visit.slot == low ? 0 : 1];
        tenants.push_back({visit.slot == low ? End::low : End::high, bytes[visit.group], from, id.value});
        from = id.value + 1;
      }
      most = std::max(most, room_for(std::move(tenants)));
    }
    return most;
  };
  for (PoolId pool : schedule.pools.ids()) {
    if (schedule.pools[pool].residency == Residency::resident) continue;
    Tensor memory;
    for (int slot = 0; slot < schedule.pools[pool].slots; ++slot) {
      const End end = slot % 2 == 0 ? End::low : End::high;
      if (end == End::low) memory = device.allocate(Category::staging, DType::u8, {room(pool, slot)});
      for (ParamGroup& group : groups) {
        if (group.pool != pool) continue;
        const std::int64_t size = bytes[group.id];
        const Interval own = interval_at(end, size, memory.bytes());  // mutation: slot_in_use_is_gathered_to
        put(device, registry, layout, group, {memory_at(memory, own.begin), DType::u8, {size}});
      }
    }
  }
}

/// Places whole gradients in transient slots.
void place_gradients(Device& device, const ParamLayout& layout, Groups& groups, const SyncSchedule& schedule) {
  Tensor memory;
  for (const GradientSlot& slot : schedule.gradient_slots) {
    if (slot.holds_shard()) continue;
    if (slot.end == End::low) memory = device.allocate(Category::staging, DType::f32, {slot.elements});
    for (ParamGroup& group : groups) {
      if (gradient_slot(schedule, group.id) != &slot) continue;
      std::int64_t offset = interval_at(slot.end, gradient_elements(layout, group.id), slot.elements).begin;
      for (ParamBucket& own : group.buckets) {
        const std::int64_t size = layout.buckets()[own.id].size.value;
        own.gradients = memory.flat(offset, size);
        offset += size;
      }
    }
  }
}

/// Gives groups of several ranks memory for their reductions: the receive slots, which reductions take in turn. What
/// follows in a round finds room beside what is in flight; the next round's first waits, if it must.
void place_reductions(Device& device, const ParamLayout& layout, const Ranks& ranks, Groups& groups,
                      const SyncSchedule& schedule) {
  static_assert(receive_slots == 2);
  std::vector<std::vector<Tenant>> rounds;
  int last = -1;
  for (const Reduction& one : schedule.reductions) {
    if (groups[one.group].rank.size == 1) continue;
    if (std::exchange(last, one.round) != one.round) rounds.emplace_back();
    std::vector<Tenant>& round = rounds.back();
    const std::int64_t number = std::ssize(round);
    const End end = number % 2 == 0 ? End::low : End::high;
    round.push_back({end, reduction_bytes(layout, groups[one.group]), number, number + 1});
  }
  std::int64_t most = 0;
  for (std::vector<Tenant>& round : rounds) most = std::max(most, room_for(std::move(round)));
  const Tensor memory = most > 0 ? device.allocate(Category::staging, DType::u8, {most}) : Tensor{};
  for (End end : {End::low, End::high})
    for (ParamGroup& group : groups) {
      if (group.rank.size == 1) continue;
      ReductionMemory& reduction = group.reduction[static_cast<std::size_t>(end)];
      const Interval interval = interval_at(end, reduction_bytes(layout, group), most);
      lay_out(layout, ranks, group, memory_at(memory, interval.begin), reduction);
      reduction.interval = interval;
    }
}

/// The same for groups of one rank, which take turns in memory for rounded gradients.
void place_rounded(Device& device, const ParamLayout& layout, const Ranks& ranks, Groups& groups) {
  std::int64_t most = 0;
  for (const ParamGroup& group : groups)
    if (group.rank.size == 1) most = std::max(most, reduction_bytes(layout, group));
  const Tensor memory = most > 0 ? device.allocate(Category::staging, DType::u8, {most}) : Tensor{};
  for (ParamGroup& group : groups)
    if (group.rank.size == 1) lay_out(layout, ranks, group, memory_at(memory, 0), group.reduction.front());
}

/// Places running sums, if there are several sharding groups to pass them on.
void place_sums(Device& device, const ParamLayout& layout, const Ranks& ranks, Groups& groups) {
  if (ranks.sharding.size == 1) return;
  std::int64_t most = 0;
  for (const ParamGroup& group : groups) most = std::max(most, shard_elements(layout, ranks, group));
  for (int i = 0; i < std::min(ranks.sharding.size, most_running_sums); ++i) {
    const Tensor slot = device.allocate(Category::staging, DType::f32, {most});
    for (ParamGroup& group : groups) {
      std::int64_t offset = 0;
      std::vector<Tensor>& sums = group.sums.emplace_back();
      for (const ParamBucket& own : group.buckets) {
        sums.push_back(slot.flat(offset, layout.buckets()[own.id].shard(ranks)));
        offset += sums.back().elements();
      }
    }
  }
}

/// Finds memory for the bf16 that is staged for the all-gather.
void place_staging(Device& device, const ParamLayout& layout, Groups& groups, const SyncSchedule& schedule,
                   GatherStaging how) {
  const auto elements = [&](const ParamBucket& own) {
    return own.travel == Travel::bf16 ? layout.buckets()[own.id].size.value : 0;
  };
  std::int64_t most = 0;
  for (const ParamGroup& group : groups) {
    std::int64_t sum = 0;
    for (const ParamBucket& own : group.buckets) sum += elements(own);
    most = std::max(most, sum);
  }
  if (most == 0) return;
  const bool ring = how == GatherStaging::ring;
  std::array<Tensor, ring_slots> slots;
  if (ring)
    for (Tensor& slot : slots) slot = device.allocate(Category::staging, DType::bf16, {most});
  for (VisitId visit : schedule.resident.ids()) {
    ParamGroup& group = groups[schedule.resident[visit].group];
    group.ring_slot = static_cast<std::size_t>(visit.value % ring_slots);
    std::int64_t offset = 0;
    for (ParamBucket& own : group.buckets) {
      const std::int64_t size = elements(own);
      if (size == 0) continue;
      group.staged_in = ring ? StagedIn::ring : StagedIn::gradients;
      own.staged = ring ? slots[group.ring_slot].flat(offset, size) : Tensor{own.gradients.data, DType::bf16, {size}};
      offset += size;
    }
  }
}

}  // namespace

IndexedBy<GroupId, ParamGroup> allocate_groups(Device& device, const ParamRegistry& registry,
                                               const ParamLayout& layout, const Ranks& ranks,
                                               const SyncSchedule& schedule, const SyncRules& rules) {
  Groups groups = groups_of(device, registry, layout, ranks, schedule, rules);
  place_weights(device, registry, layout, groups, schedule);
  if (rules.micro_batches > 0) {
    place_gradients(device, layout, groups, schedule);
    place_reductions(device, layout, ranks, groups, schedule);
    place_rounded(device, layout, ranks, groups);
    place_sums(device, layout, ranks, groups);
  }
  place_staging(device, layout, groups, schedule, rules.weights.staging);
  return groups;
}

void visit_planes(const ParamLayout& layout, const ParamGroup& group, const Gathered& held,
                  const std::function<void(const Plane&)>& see) {
  for (const ParamBucket& own : group.buckets)
    own.places[static_cast<std::size_t>(held.place)].visit([&](PlaneKind kind, const StoredArray& array) {
      if (holds(layout.buckets()[own.id].key.format, own.travel, held.sides, kind))
        see({group.id, own.id, kind, array.values, array.members});
    });
}

}  // namespace tessera
