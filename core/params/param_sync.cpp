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
      rounds_(schedule_, layout),
      pending_(device, registry, layout, mesh, schedule_, rules_, overlaps_) {
  for (ParamGroup& group : groups_)
    for (ParamBucket& own : group.buckets) buckets_[own.id] = &own;
  for (const Pool& pool : schedule_.pools) slots_.add(std::vector<WeightSlot>(static_cast<std::size_t>(pool.slots)));
  make_wires(masters);
  for (const Visit& visit : schedule_.inspection)
    if (std::ranges::find(published_, visit.group) == published_.end()) published_.push_back(visit.group);
  for (const Visit& visit : schedule_.resident)
    if (visit.staged == StagedAt::gather) std::erase(published_, visit.group);
  cursor_.begin(schedule_.shards);
  cursor_.begin(schedule_.resident);
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
    const WireContext context{device_, registry_, layout_, mesh_.ranks()};
    wires_.push_back(std::make_unique<Wire>(context, first.travel, buckets));
    for (const WireBucket& own : buckets) buckets_[own.id]->wire = wires_.back().get();
  }
}

/// Opens the buffers of all gathers and reductions, once. Not in the constructor, which is Local. Collective.
void ParamSync::open_buffers() {
  if (std::exchange(opened_, true)) return;
  std::vector<Exchange*> all;
  const auto add = [&](std::span<Exchange> exchanges) {
    for (Exchange& exchange : exchanges) all.push_back(&exchange);
  };
  const auto open_all = [&](ProcessGroup processes, Level level) {
    if (!all.empty()) mesh_.of(processes, level).open(all);
    all.clear();
  };
  for (ProcessGroup processes : process_groups) {
    for (ParamGroup& group : groups_) {
      if (group.processes != processes || group.rank.size == 1) continue;
      for (ReductionMemory& memory : group.reduction) add(memory.exchanges);
      const int slots = schedule_.pools[group.pool].slots;
      for (const std::unique_ptr<Wire>& wire : wires_)
        for (int slot = 0; slot < slots; ++slot)
          for (Sides sides : {Sides::none, Sides::rowwise, Sides::columnwise, Sides::both})
            if (slots > 1 || sides == Sides::both) add(wire->exchanges(group.id, {slot, sides}));
    }
    open_all(processes, Level::inside);
  }
  for (const Visit& visit : schedule_.shards)
    for (const std::unique_ptr<Wire>& wire : wires_) add(wire->exchanges_across(visit.group));
  open_all(ProcessGroup::dense, Level::across);  // experts' shards have the same ranks
}

Accumulating ParamSync::accumulate(const WireKey& key) {
  if (device_.compute().capturing()) overlaps_.begin_capture();
  end_pass();
  pending_.begin(key);
  cursor_.begin(schedule_.training);
  return Accumulating(*this);
}

Forward ParamSync::forward(Stream& stream) {
  unshard_all(stream);
  end_pass();
  cursor_.begin(schedule_.evaluation);
  return Forward(*this);
}

void ParamSync::publish(Stream& stream, Updated&& updated) {
  open_buffers();
  for (const ParamGroup& group : groups_)  // in the memory of gradients that are in use nothing may be staged
    // mutation: staged_in_gradients_in_use
    if (group.staged_in == StagedIn::gradients && group.gradients.state() != GradientState::empty)
      throw StateError(group.id, group.weights.epoch(), name_of(group.gradients.state()), "staged in gradients");
  if (updated.weights() == Updated::Weights::current) invalidate(stream);  // mutation: staged_before_the_step.1
  reduce_amaxes(stream);
  stage(stream, published_);  // mutation: cast_twice, gathered_twice
  // Groups that are staged with their gathers are staged from their masters.
  for (const std::unique_ptr<Wire>& wire : wires_) wire->release_claims();
  if (rules_.gather == Overlap::off) unshard_all(stream);
  if (stream.capturing()) overlaps_.end_capture();
}

void ParamSync::replayed() {
  for (ParamGroup& group : groups_) {
    group.weights.replayed();  // mutation: epochs_stand_still
    group.gradients.replayed();
  }
  overlaps_.replayed();
}

void ParamSync::unshard_all(Stream& stream) {  // mutation: gathered_mark_outlives_an_evaluation.2
  for (const Visit& visit : schedule_.resident)
    if (!cursor_.open(visit.pool)) open(stream, visit.pool);  // mutation: settled_without_consume
  for (const Visit& visit : schedule_.shards) open_shard(stream, groups_[visit.group]);
}

void ParamSync::inspect(Stream& stream, const std::function<void(const Plane&)>& see) {
  unshard_all(stream);
  end_pass();
  cursor_.begin(schedule_.inspection);
  for (const Visit& visit : schedule_.inspection) {
    const Visit* now = cursor_.open(visit.pool);
    if (!now || !now->serves(visit.group, visit.sides)) open(stream, visit.pool);
    tessera::visit_planes(layout_, groups_[visit.group], {visit.slot, visit.sides}, see);
  }
  end_pass();
}

void ParamSync::visit_planes(const std::function<void(const Plane&)>& see) const {
  for (const ParamGroup& group : groups_) tessera::visit_planes(layout_, group, {}, see);
}

WeightState ParamSync::weight_state(GroupId group) const {
  const PoolId pool = groups_[group].pool;
  const Visit* const open = cursor_.open(pool);
  if (open && open->group == group) return WeightState::ready;
  const auto holds = [&](const WeightSlot& slot) { return slot.visit && slot.visit->group == group; };
  return std::ranges::any_of(slots_[pool], holds) ? WeightState::in_flight : groups_[group].weights.state();
}

std::vector<std::uint8_t> ParamSync::state() const {
  std::vector<std::uint8_t> all;
  for (const ParamGroup& group : groups_) {
    all.push_back(static_cast<std::uint8_t>(weight_state(group.id)));
    all.push_back(static_cast<std::uint8_t>(group.gradients.state()));
  }
  for (const std::vector<WeightSlot>& slots : slots_)
    for (const WeightSlot& slot : slots) all.push_back(static_cast<std::uint8_t>(slot.machine.state()));
  return all;
}

}  // namespace tessera
