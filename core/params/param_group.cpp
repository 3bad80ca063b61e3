#include "core/params/param_group.hpp"

#include <algorithm>

namespace tessera {
namespace {

std::int64_t received_elements(const ParamGroup& group) {
  std::int64_t sum = 0;
  for (const ParamBucket& own : group.buckets) sum += group.place.size * own.gradients_slice.elements();
  return sum;
}

/// All-to-all into `slot`, bucket behind bucket, for a local sum in rank order.
std::vector<Exchange> into_slot(const ParamLayout& layout, const ParamGroup& group, const Tensor& slot) {
  std::vector<Exchange> exchanges;
  std::int64_t offset = 0;
  for (const ParamBucket& own : group.buckets) {
    const Bucket& bucket = layout.buckets()[own.id];
    const Shape received{group.place.size, own.gradients_slice.elements()};
    exchanges.push_back({own.gradients, slot.flat(offset, received.elements()).view(received), bucket.counts,
                         bucket.begins});
    offset += received.elements();
  }
  return exchanges;
}

/// The library's reduce-scatter, in place.
std::vector<Exchange> in_place(const ParamLayout& layout, const ParamGroup& group) {
  std::vector<Exchange> exchanges;
  for (const ParamBucket& own : group.buckets) {
    const Bucket& bucket = layout.buckets()[own.id];
    exchanges.push_back({{}, own.gradients, bucket.counts, bucket.begins});
  }
  return exchanges;
}

void prepare_reductions(Device& device, const ParamLayout& layout, IndexedBy<GroupId, ParamGroup>& groups,
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

}  // namespace

IndexedBy<GroupId, ParamGroup> allocate_groups(Device& device, const ParamLayout& layout, const Ranks& ranks,
                                               ReduceOrder order) {
  IndexedBy<GroupId, ParamGroup> groups;
  for (GroupId id : layout.groups().ids()) {
    ParamGroup group;
    group.id = id;
    group.processes = layout.groups()[id].processes;
    group.place = ranks.of(group.processes);
    group.weights = WeightMachine(id);
    group.gradients = GradientMachine(id);
    for (BucketId b : layout.groups()[id].buckets) {
      const Bucket& bucket = layout.buckets()[b];
      const Tensor gradients = device.allocate(Category::gradients, DType::f32, {bucket.size.value});
      group.buckets.push_back({b, Planes(device, bucket), nullptr, gradients, bucket.slice(gradients, ranks)});
    }
    groups.add(std::move(group));
  }
  prepare_reductions(device, layout, groups, order);
  return groups;
}

}  // namespace tessera
