#include "core/params/param_sync.hpp"

#include <algorithm>
#include <utility>

namespace tessera {

ParamSync::ParamSync(Device& device, const ParamRegistry& registry, const ParamLayout& layout, SyncSchedule schedule,
                     const Masters& masters, Mesh& mesh, const SyncRules& rules)
    : device_(device),
      layout_(layout),
      registry_(registry),
      mesh_(mesh),
      schedule_(std::move(schedule)),
      rules_(rules),
      groups_(allocate_groups(device, registry, layout, mesh.ranks(), schedule_, rules)),
      buckets_(layout.buckets().size()),
      cursor_(schedule_.pools.size()),
      writes_(schedule_.contributions, layout),
      sent_(schedule_.gradient_slots.size()),
      weights_(*this),
      gradients_(*this) {
  for (ParamGroup& group : groups_)
    for (ParamBucket& own : group.buckets) buckets_[own.id] = &own;
  for (const Pool& pool : schedule_.pools) slots_.add(std::vector<WeightSlot>(static_cast<std::size_t>(pool.slots)));
  place_weights(device, registry, layout, groups_, schedule_);
  if (rules.micro_batches > 0) {
    place_gradients(device, layout, groups_, schedule_);
    place_reductions(device, layout, groups_, rules.order);
  }
  place_staging(device, layout, groups_, schedule_, rules.weights.staging);
  make_wires(masters);
  for (const Visit& visit : schedule_.inspection)
    if (std::ranges::find(published_, visit.group) == published_.end()) published_.push_back(visit.group);
  for (const Visit& visit : schedule_.resident)
    if (visit.staged == StagedAt::gather) std::erase(published_, visit.group);
  cursor_.begin(schedule_.resident);
  restart();
}

/// Makes a wire for each format: one for buckets in one slot, whose shards are views into it, and one for the others.
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
    wires_.push_back(make_wire({device_, registry_, layout_, mesh_.ranks()}, first.travel, buckets));
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
      if (group.processes != processes || group.rank.size == 1) continue;
      if (rules_.order == ReduceOrder::rank)
        for (std::vector<Exchange>& received : group.reduction) add(received);
      const int slots = schedule_.pools[group.pool].slots;
      for (const std::unique_ptr<Wire>& wire : wires_)
        for (int slot = 0; slot < slots; ++slot)
          for (Sides sides : {Sides::none, Sides::rowwise, Sides::columnwise, Sides::both})
            if (slots > 1 || sides == Sides::both) add(wire->exchanges(group.id, {slot, sides}));
    }
    if (!all.empty()) mesh_.of(processes).open(all);
  }
}

Accumulating ParamSync::accumulate() {
  begin_pass(schedule_.training);
  return Accumulating(gradients_);
}

Forward ParamSync::forward(Stream& stream) {
  settle(stream);
  begin_pass(schedule_.evaluation);
  return Forward(*this);
}

void ParamSync::publish(Stream& stream, Updated&& updated) {
  open_buffers();
  require_unused_staging();
  if (updated.weights_ == Updated::Weights::current) invalidate(stream);
  agree(stream);
  stage(stream, published_);
  release_claims();  // groups that are staged with their gathers are staged from their masters
  if (rules_.gather == Overlap::off) settle(stream);
}

void ParamSync::settle(Stream& stream) {
  for (const Visit& visit : schedule_.resident)
    if (!cursor_.open(visit.pool)) open(stream, visit.pool);
}

void ParamSync::inspect(Stream& stream, const std::function<void(const Plane&)>& see) {
  settle(stream);
  begin_pass(schedule_.inspection);
  for (const Visit& visit : schedule_.inspection) {
    const Visit* now = cursor_.open(visit.pool);
    if (!now || !now->serves(visit.group, visit.sides)) open(stream, visit.pool);
    visit_planes(groups_[visit.group], {visit.slot, visit.sides}, see);
  }
  end_pass();
}

void ParamSync::visit_planes(const ParamGroup& group, const Held& held,
                             const std::function<void(const Plane&)>& see) const {
  for (const ParamBucket& own : group.buckets)
    own.places[static_cast<std::size_t>(held.place)].visit([&](PlaneKind kind, const StoredArray& array) {
      if (holds(layout_.buckets()[own.id].key.format, own.travel, held.sides, kind))
        see({group.id, own.id, kind, array.values, array.members});
    });
}

WeightState ParamSync::weights_of(const ParamGroup& group) const {
  for (const WeightSlot& slot : slots_[group.pool]) {
    if (!slot.visit || slot.visit->group != group.id) continue;
    if (slot.machine.state() == SlotState::in_flight) return WeightState::in_flight;
    return slot.machine.state() == SlotState::gathered ? WeightState::gathered : WeightState::ready;
  }
  return group.weights.state();
}

std::vector<std::uint8_t> ParamSync::state() const {
  std::vector<std::uint8_t> all;
  for (const ParamGroup& group : groups_) {
    all.push_back(static_cast<std::uint8_t>(weights_of(group)));
    all.push_back(static_cast<std::uint8_t>(group.gradients.state()));
  }
  for (const std::vector<WeightSlot>& slots : slots_)
    for (const WeightSlot& slot : slots) all.push_back(static_cast<std::uint8_t>(slot.machine.state()));
  return all;
}

}  // namespace tessera
