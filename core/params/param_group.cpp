#include "core/params/param_group.hpp"

#include <algorithm>

namespace tessera {
namespace {

std::int64_t received_elements(const ParamGroup& group) {
  std::int64_t sum = 0;
  for (const ParamBucket& own : group.buckets) sum += (group.place.size - 1) * own.gradients_slice.elements();
  return sum;
}

/// Exchanges of an all-to-all into `slot`, bucket after bucket, for a local sum in rank order.
std::vector<Exchange> into_slot(const ParamLayout& layout, const ParamGroup& group, const Tensor& slot) {
  std::vector<Exchange> exchanges;
  std::int64_t offset = 0;
  for (const ParamBucket& own : group.buckets) {
    const Bucket& bucket = layout.buckets()[own.id];
    const Shape received{group.place.size - 1, own.gradients_slice.elements()};
    exchanges.push_back({own.gradients, slot.flat(offset, received.elements()).view(received), bucket.counts,
                         bucket.begins});
    offset += received.elements();
  }
  return exchanges;
}

/// Exchanges of the library's reduce-scatter, in place.
std::vector<Exchange> in_place(const ParamLayout& layout, const ParamGroup& group) {
  std::vector<Exchange> exchanges;
  for (const ParamBucket& own : group.buckets) {
    const Bucket& bucket = layout.buckets()[own.id];
    exchanges.push_back({{}, own.gradients, bucket.counts, bucket.begins});
  }
  return exchanges;
}

/// Allocates a bucket's gradients, if there is training, and its weights unless they are pooled.
ParamBucket allocate_bucket(Device& device, const ParamRegistry& registry, BucketId id, const Bucket& bucket,
                            const Ranks& ranks, const SyncRules& rules, bool pooled) {
  ParamBucket own;
  own.id = id;
  own.way = way_of(bucket.key.format, rules.weights);
  if (rules.micro_batches > 0) {
    const Shape gradients{pooled ? bucket.slice(ranks) : bucket.size.value};
    const Tensor memory = device.allocate(Category::gradients, DType::f32, gradients);
    if (!pooled) own.gradients = memory;
    own.gradients_slice = pooled ? memory : bucket.slice(memory, ranks);
  }
  if (!pooled) own.places.push_back(Planes::allocated(device, registry, bucket, own.way));
  return own;
}

}  // namespace

IndexedBy<GroupId, ParamGroup> allocate_groups(Device& device, const ParamRegistry& registry,
                                               const ParamLayout& layout, const Ranks& ranks, const SyncRules& rules) {
  IndexedBy<GroupId, ParamGroup> groups;
  for (GroupId id : layout.groups().ids()) {
    ParamGroup group;
    group.id = id;
    group.processes = layout.groups()[id].processes;
    group.place = ranks.of(group.processes);
    const bool pooled = rules.weights.sharding == Sharding::full && group.place.size > 1;  // one rank alone holds all
    const Residing residing = pooled ? Residing::visiting : Residing::always;
    group.residences.resize(pooled ? weight_slots : 1);
    for (Residence& residence : group.residences) residence.weights = WeightMachine(id, residing);
    group.gradients = GradientMachine(id, residing);
    for (BucketId b : layout.groups()[id].buckets)
      group.buckets.push_back(allocate_bucket(device, registry, b, layout.buckets()[b], ranks, rules, pooled));
    groups.add(std::move(group));
  }
  return groups;
}

void place_reductions(Device& device, const ParamLayout& layout, IndexedBy<GroupId, ParamGroup>& groups,
                      ReduceOrder order) {
  std::vector<ParamGroup*> shared;
  std::int64_t most = 0;
  for (ParamGroup& group : groups) {
    if (group.place.size == 1) continue;
    shared.push_back(&group);
    most = std::max(most, received_elements(group));
  }
  if (shared.empty()) return;
  for (std::size_t i = 0; i < receive_slots; ++i) {
    const bool by_rank = order == ReduceOrder::rank;
    const Tensor slot = by_rank ? device.allocate(Category::staging, DType::f32, {most}) : Tensor{};
    for (ParamGroup* group : shared)
      group->reduction[i] = by_rank ? into_slot(layout, *group, slot) : in_place(layout, *group);
  }
}

void place_staging(Device& device, const ParamLayout& layout, IndexedBy<GroupId, ParamGroup>& groups,
                   std::span<const GroupId> order, GatherStaging how) {
  const auto elements = [&](const ParamBucket& own) {
    return own.way == Way::source ? layout.buckets()[own.id].size.value : 0;
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
  for (std::size_t i = 0; i < order.size(); ++i) {
    ParamGroup& group = groups[order[i]];
    std::int64_t offset = 0;
    for (ParamBucket& own : group.buckets) {
      const std::int64_t size = elements(own);
      if (size == 0) continue;
      group.staging = {ring ? Staging::Place::ring : Staging::Place::gradients, static_cast<int>(i % ring_slots)};
      own.staged = ring ? slots[i % ring_slots].flat(offset, size) : Tensor{own.gradients.data, DType::bf16, {size}};
      offset += size;
    }
  }
}

}  // namespace tessera
