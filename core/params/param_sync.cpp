#include "core/params/param_sync.hpp"

#include <algorithm>
#include <utility>

#include "core/params/pool.hpp"

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
  place_pools(usage);
  if (rules.micro_batches > 0) place_reductions(device, layout, groups_, rules.order);
  order_groups(usage);
  place_staging(device, layout, groups_, order_, rules.weights.staging);
  make_wires(masters);
  staging_.reserve(order_.size());
  for (const Contribution& one : usage.contributions)
    contributions_[one.param].expected += group_of(one.param).pooled() ? 1 : rules.micro_batches;
  restart();
}

/// Makes the visits of full sharding and the pools that they need.
void ParamSync::place_pools(const Usage& usage) {
  std::vector<Visit> all;
  const auto plan = [&](const std::vector<Access>& accesses, std::array<std::vector<Visit>, 2>& visits) {
    for (const Visit& visit : visits_of(accesses, layout_, rules_.weights)) {
      if (!groups_[visit.group].pooled()) continue;
      visits[static_cast<std::size_t>(groups_[visit.group].processes)].push_back(visit);
      all.push_back(visit);
    }
  };
  plan(usage.training, training_);
  plan(usage.evaluation, evaluation_);
  place_weights(device_, registry_, layout_, groups_, all);
  place_gradients(device_, layout_, groups_, usage.contributions);
}

/// Makes a wire for each format, one for pooled buckets and one for the others.
void ParamSync::make_wires(const Masters& masters) {
  const auto format = [this](const ParamBucket& own) -> const WeightFormat& {
    return layout_.buckets()[own.id].key.format;
  };
  for (BucketId b : buckets_.ids()) {
    const ParamBucket& first = *buckets_[b];
    if (first.wire) continue;
    std::vector<WireBucket> buckets;
    for (const ParamGroup& group : groups_)
      for (const ParamBucket& own : group.buckets)
        if (format(own) == format(first) && own.places.size() == first.places.size())
          buckets.push_back({group.id, own.id, own.places, own.staged, masters.shard(own.id)});
    wires_.push_back(make_wire({device_, registry_, layout_, mesh_.ranks()}, first.way, buckets));
    for (const WireBucket& own : buckets) buckets_[own.id]->wire = wires_.back().get();
  }
}

/// Opens the buffers of all gathers and reductions, once. Not in the constructor, which is Local. Collective.
void ParamSync::open_buffers() {
  if (std::exchange(opened_, true)) return;
  for (ProcessGroup processes : process_groups) {
    std::vector<Exchange*> all;
    const auto add = [&](std::span<Exchange> exchanges) {
      for (Exchange& exchange : exchanges) all.push_back(&exchange);
    };
    for (ParamGroup& group : groups_) {
      if (group.processes != processes || group.place.size == 1) continue;
      if (rules_.order == ReduceOrder::rank)
        for (std::vector<Exchange>& received : group.reduction) add(received);
      for (const std::unique_ptr<Wire>& wire : wires_)
        for (int place = 0; place < static_cast<int>(group.residences.size()); ++place)
          for (Sides sides : {Sides::none, Sides::rowwise, Sides::columnwise, Sides::both})
            if (group.pooled() || sides == Sides::both) add(wire->exchanges(group.id, {place, sides}));
    }
    if (!all.empty()) mesh_.of(processes).open(all);
  }
}

void ParamSync::order_groups(const Usage& usage) {
  const auto append = [this](GroupId group) {
    if (std::find(order_.begin(), order_.end(), group) == order_.end()) order_.push_back(group);
  };
  for (const std::vector<Access>* accesses : {&usage.training, &usage.evaluation})
    for (const Access& access : *accesses) append(layout_.group_of(access.param));
  for (GroupId group : groups_.ids()) append(group);  // groups that no pass uses come last
  ParamGroup* before = nullptr;
  for (GroupId id : order_) {
    if (groups_[id].pooled()) continue;
    if (before) before->next = id;
    before = &groups_[id];
  }
}

Accumulating ParamSync::accumulate() {
  start_passes(training_, rules_.micro_batches);
  return Accumulating(gradients_);
}

Forward ParamSync::forward(Stream& stream) {
  settle(stream);
  start_passes(evaluation_, 1);
  return Forward(*this);
}

void ParamSync::publish(Stream& stream, Updated&& updated) {
  open_buffers();
  require_no_lease();
  if (updated.weights_ == Updated::Weights::current) outdate(stream);
  agree(stream);
  stage(stream, order_);
  release_claims();  // groups that wait for a ring slot are staged from their masters
  if (rules_.gather == Overlap::off) settle(stream);
}

void ParamSync::settle(Stream& stream) {
  for (GroupId id : order_)
    if (!groups_[id].pooled() && groups_[id].state() != WeightState::ready) walk_to_ready(stream, groups_[id]);
}

void ParamSync::visit_planes(const ParamGroup& group, const Held& held,
                             const std::function<void(const Plane&)>& see) const {
  for (const ParamBucket& own : group.buckets)
    own.places[static_cast<std::size_t>(held.place)].visit([&](PlaneKind kind, const StoredArray& array) {
      if (holds(layout_.buckets()[own.id].key.format, own.way, held.sides, kind))
        see({group.id, own.id, kind, array.values, array.members});
    });
}

void ParamSync::inspect(Stream& stream, const std::function<void(const Plane&)>& see) {
  settle(stream);
  end_passes();
  for (GroupId id : order_) {
    ParamGroup& group = groups_[id];
    if (!group.pooled()) {
      visit_planes(group, {}, see);
      continue;
    }
    const bool apart = std::ranges::any_of(group.buckets, [&](const ParamBucket& own) {
      return payload_of(layout_.buckets()[own.id].key.format, own.way, Side::columnwise) == Sides::columnwise;
    });
    for (Sides sides : {Sides::rowwise, Sides::columnwise}) {
      if (sides == Sides::columnwise && !apart) continue;
      begin_gather(stream, group, {0, sides});
      finish_gather(stream, group);
      visit_planes(group, {0, sides}, see);
      release(group, 0);
    }
  }
}

std::vector<std::uint8_t> ParamSync::state() const {
  std::vector<std::uint8_t> all;
  for (const ParamGroup& group : groups_) {
    for (const Residence& residence : group.residences)
      all.push_back(static_cast<std::uint8_t>(residence.weights.state()));
    all.push_back(static_cast<std::uint8_t>(group.gradients.state()));
  }
  return all;
}

}  // namespace tessera
