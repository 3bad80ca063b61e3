#include "core/params/slots.hpp"

#include <algorithm>

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

/// Lays out a group's reduction from `memory` on; null: only to measure. Returns the bytes.
std::int64_t lay_out(const ParamLayout& layout, const Ranks& ranks, const ParamGroup& group, std::byte* memory,
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
  return dealer.bytes();
}

/// The slot of a group's whole gradients, the same in every round; null if the group is never reduced.
const GradientSlot* gradient_slot(const SyncSchedule& schedule, GroupId group) {
  const auto first = std::ranges::find(schedule.reductions, group, &Reduction::group);
  return first == schedule.reductions.end() ? nullptr : &schedule.gradient_slots[static_cast<std::size_t>(first->slot)];
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

/// Places weights in transient pools: each slot is as large as the largest visit of its pool needs, derived copies
/// included. Every group has a place in every slot of its pool.
void place_weights(Device& device, const ParamRegistry& registry, const ParamLayout& layout, Groups& groups,
                   const SyncSchedule& schedule) {
  for (PoolId pool : schedule.pools.ids()) {
    if (schedule.pools[pool].residency == Residency::resident) continue;
    std::int64_t most = 0;
    for (const Visits* visits : {&schedule.training, &schedule.evaluation, &schedule.inspection})
      for (const Visit& visit : *visits)
        if (visit.pool == pool && visit.micro_batch == 0)
          most = std::max(most, bytes_of(registry, layout, groups[visit.group], visit.sides));
    for (int i = 0; i < schedule.pools[pool].slots; ++i) {
      // mutation: slot_in_use_is_gathered_to
      const Tensor slot = device.allocate(Category::staging, DType::u8, {round_up(most, Arena::alignment)});
      for (ParamGroup& group : groups)
        if (group.pool == pool) put(device, registry, layout, group, slot);
    }
  }
}

/// Places whole gradients in transient slots.
void place_gradients(Device& device, const ParamLayout& layout, Groups& groups, const SyncSchedule& schedule) {
  for (const GradientSlot& slot : schedule.gradient_slots) {
    if (slot.holds_shard()) continue;
    const Tensor memory = device.allocate(Category::staging, DType::f32, {slot.elements});
    for (ParamGroup& group : groups) {
      if (gradient_slot(schedule, group.id) != &slot) continue;
      std::int64_t offset = 0;
      for (ParamBucket& own : group.buckets) {
        const std::int64_t size = layout.buckets()[own.id].size.value;
        own.gradients = memory.flat(offset, size);
        offset += size;
      }
    }
  }
}

/// Gives each group memory for its reductions. Groups of several ranks share the receive slots; groups of one rank take
/// turns in memory of their own. Gradients have their memory already.
void place_reductions(Device& device, const ParamLayout& layout, const Ranks& ranks, Groups& groups) {
  const auto place = [&](bool shared, std::size_t slots) {
    std::int64_t most = 0;
    for (ParamGroup& group : groups)
      if ((group.rank.size > 1) == shared)
        most = std::max(most, lay_out(layout, ranks, group, nullptr, group.reduction[0]));
    for (std::size_t i = 0; i < slots; ++i) {
      const Tensor slot = most > 0 ? device.allocate(Category::staging, DType::u8, {most}) : Tensor{};
      for (ParamGroup& group : groups)
        if ((group.rank.size > 1) == shared)
          lay_out(layout, ranks, group, static_cast<std::byte*>(slot.data), group.reduction[i]);
    }
  };
  place(true, receive_slots);
  place(false, 1);
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
    place_reductions(device, layout, ranks, groups);
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
