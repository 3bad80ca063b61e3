#include "core/params/param_sync.hpp"

#include <algorithm>

namespace tessera {

ParamSync::ParamSync(Device& device, const ParamRegistry& registry, const ParamLayout& layout, const Usage& usage,
                     const Masters& masters, Mesh& mesh, const SyncRules& rules)
    : device_(device),
      registry_(registry),
      layout_(layout),
      mesh_(mesh),
      rules_(rules),
      groups_(allocate_groups(device, registry, layout, mesh.ranks(), rules)),
      buckets_(layout.buckets().size()),
      contributions_(registry.size()),
      weights_(*this),
      gradients_(*this) {
  for (ParamGroup& group : groups_)
    for (ParamBucket& own : group.buckets) buckets_[own.id] = &own;
  order_groups(usage);
  place_staging(device, layout, groups_, order_, rules.weights.staging);
  make_wires(masters);
  staging_.reserve(order_.size());
  for (ParamId param : contributions_.ids())
    contributions_[param].expected = usage.writes[param] * rules.micro_batches;
  restart();
}

/// One for each format.
void ParamSync::make_wires(const Masters& masters) {
  std::vector<const BucketKey*> made;
  for (const Bucket& first : layout_.buckets()) {
    const auto same = [&](const BucketKey& key) { return key.format == first.key.format; };
    if (std::any_of(made.begin(), made.end(), [&](const BucketKey* key) { return same(*key); })) continue;
    made.push_back(&first.key);
    std::vector<WireBucket> buckets;
    for (const ParamGroup& group : groups_)
      for (const ParamBucket& own : group.buckets)
        if (same(layout_.buckets()[own.id].key))
          buckets.push_back({group.id, own.id, &own.planes, own.staged, masters.shard(own.id)});
    wires_.push_back(make_wire({device_, registry_, layout_, mesh_.ranks()},
                               way_of(first.key.format, rules_.weights), buckets));
    for (const WireBucket& own : buckets) buckets_[own.id]->wire = wires_.back().get();
  }
  for (ParamGroup& group : groups_)
    for (const std::unique_ptr<Wire>& wire : wires_) {
      const std::span<const Exchange> exchanges = wire->exchanges(group.id);
      group.all_gather.insert(group.all_gather.end(), exchanges.begin(), exchanges.end());
    }
}

void ParamSync::order_groups(const Usage& usage) {
  const auto append = [this](GroupId group) {
    if (std::find(order_.begin(), order_.end(), group) == order_.end()) order_.push_back(group);
  };
  for (const std::vector<Access>* accesses : {&usage.training, &usage.evaluation})
    for (const Access& access : *accesses) append(layout_.group_of(access.param));
  for (GroupId group : groups_.ids()) append(group);  // unused ones are gathered last
  for (std::size_t i = 0; i + 1 < order_.size(); ++i) groups_[order_[i]].next = order_[i + 1];
}

void ParamSync::publish(Stream& stream, Updated&&) {
  outdate(stream);
  agree(stream);
  stage(stream, order_);
  if (rules_.gather == Overlap::off) settle(stream);
}

void ParamSync::settle(Stream& stream) {
  for (GroupId id : order_)
    if (groups_[id].weights.state() != WeightState::ready) walk_to_ready(stream, groups_[id]);
}

std::vector<std::uint8_t> ParamSync::state() const {
  std::vector<std::uint8_t> all;
  for (const ParamGroup& group : groups_) {
    all.push_back(static_cast<std::uint8_t>(group.weights.state()));
    all.push_back(static_cast<std::uint8_t>(group.gradients.state()));
  }
  return all;
}

}  // namespace tessera
