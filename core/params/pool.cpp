#include "core/params/pool.hpp"

#include <algorithm>
#include <array>
#include <limits>

namespace tessera {
namespace {


bool columns(PlaneKind kind) { return kind == PlaneKind::columnwise || kind == PlaneKind::columnwise_scales; }

/// Bytes that a visit of a group with these copies takes in a slot.
std::int64_t bytes_of(const ParamRegistry& registry, const ParamLayout& layout, const ParamGroup& group, Sides sides) {
  Arena slot;
  for (const ParamBucket& own : group.buckets) {
    const Bucket& bucket = layout.buckets()[own.id];
    const auto place = [&](PlaneKind kind, DType type, const Shape& shape) {
      const bool here = kind != PlaneKind::amax && holds(bucket.key.format, own.way, sides, kind);
      return here ? slot.keep(type, shape) : Tensor{};
    };
    const Planes measured(registry, bucket, own.way, place);
  }
  return slot.peak();
}

/// Places a group's arrays in a slot: plain values, then rowwise arrays from below; columnwise arrays, if the copies
/// travel apart, from above, so that a visit of one copy leaves the other's place free. Amaxes, on which ranks agree
/// once a step, have permanent memory outside of the slot.
void put(Device& device, const ParamRegistry& registry, const ParamLayout& layout, ParamGroup& group,
         const Tensor& slot) {
  auto* memory = static_cast<std::byte*>(slot.data);
  Arena below(memory, slot.bytes()), above(memory, slot.bytes());
  std::vector<ParamBucket*> buckets;
  for (ParamBucket& own : group.buckets) buckets.push_back(&own);
  std::ranges::stable_partition(buckets, [](const ParamBucket* own) { return own->way == Way::values; });
  for (ParamBucket* const bucket_of_group : buckets) {
    ParamBucket& own = *bucket_of_group;
    const Bucket& bucket = layout.buckets()[own.id];
    const bool apart = !holds(bucket.key.format, own.way, Sides::rowwise, PlaneKind::columnwise);
    const auto place = [&](PlaneKind kind, DType type, const Shape& shape) {
      if (kind != PlaneKind::amax) return apart && columns(kind) ? above.temp(type, shape) : below.keep(type, shape);
      return own.places.empty() ? device.allocate(Category::weights, type, shape) : own.places.front()[kind].values;
    };
    own.places.emplace_back(registry, bucket, own.way, place);
  }
}

/// Indices of a micro-batch's first and last contribution to a group's gradients.
struct Lifetime {
  ParamGroup* group;
  std::int64_t first = std::numeric_limits<std::int64_t>::max(), last = -1;
};

std::vector<Lifetime> lifetimes(const ParamLayout& layout, IndexedBy<GroupId, ParamGroup>& groups,
                                ProcessGroup processes, std::span<const Contribution> contributions) {
  std::vector<Lifetime> all;
  for (ParamGroup& group : groups) {
    if (!group.pooled() || group.processes != processes) continue;
    Lifetime& life = all.emplace_back(Lifetime{&group});
    for (std::size_t i = 0; i < contributions.size(); ++i) {
      if (layout.group_of(contributions[i].param) != group.id) continue;
      life.last = static_cast<std::int64_t>(i);
      life.first = std::min(life.first, life.last);
    }
  }
  std::ranges::stable_sort(all, {}, &Lifetime::first);
  return all;
}

/// Gives each group a slot; returns the number of slots. A slot is free for a group if its last contribution comes
/// before the first one of the group's predecessor: it is reduced while the predecessor accumulates.
int deal_slots(std::span<const Lifetime> all) {
  std::vector<std::int64_t> last;  // index of the last contribution to each slot
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::int64_t before = i > 0 ? all[i - 1].first : -1;
    const auto free = std::ranges::find_if(last, [&](std::int64_t contribution) { return contribution < before; });
    all[i].group->pool_slot = static_cast<int>(free - last.begin());
    if (free == last.end())
      last.push_back(all[i].last);
    else
      *free = all[i].last;
  }
  return static_cast<int>(last.size());
}

}  // namespace

void place_weights(Device& device, const ParamRegistry& registry, const ParamLayout& layout,
                   IndexedBy<GroupId, ParamGroup>& groups, std::span<const Visit> visits) {
  for (ProcessGroup processes : process_groups) {
    const auto lives_here = [&](const ParamGroup& group) { return group.pooled() && group.processes == processes; };
    std::int64_t most = 0;
    const auto count = [&](const ParamGroup& group, Sides sides) {
      if (lives_here(group)) most = std::max(most, bytes_of(registry, layout, group, sides));
    };
    for (const Visit& visit : visits) count(groups[visit.group], visit.sides);
    for (const ParamGroup& group : groups)  // ParamSync::inspect also visits groups that no pass uses
      for (Sides sides : {Sides::rowwise, Sides::columnwise}) count(group, sides);
    if (most == 0) continue;
    for (std::size_t i = 0; i < std::size_t{weight_slots}; ++i) {
      const Tensor slot = device.allocate(Category::staging, DType::u8, {round_up(most, Arena::alignment)});
      for (ParamGroup& group : groups)
        if (lives_here(group)) put(device, registry, layout, group, slot);
    }
  }
}

void place_gradients(Device& device, const ParamLayout& layout, IndexedBy<GroupId, ParamGroup>& groups,
                     std::span<const Contribution> contributions) {
  for (ProcessGroup processes : process_groups) {
    const std::vector<Lifetime> all = lifetimes(layout, groups, processes, contributions);
    for (int slot = 0, slots = deal_slots(all); slot < slots; ++slot) {
      const auto elements = [&](const ParamGroup& group) {
        std::int64_t sum = 0;
        for (const ParamBucket& own : group.buckets) sum += layout.buckets()[own.id].size.value;
        return sum;
      };
      std::int64_t most = 0;
      for (const Lifetime& life : all)
        if (life.group->pool_slot == slot) most = std::max(most, elements(*life.group));
      const Tensor memory = device.allocate(Category::staging, DType::f32, {most});
      for (const Lifetime& life : all) {
        if (life.group->pool_slot != slot) continue;
        std::int64_t offset = 0;
        for (ParamBucket& own : life.group->buckets) {
          const std::int64_t size = layout.buckets()[own.id].size.value;
          own.gradients = memory.flat(offset, size);
          offset += size;
        }
      }
    }
  }
}

}  // namespace tessera
