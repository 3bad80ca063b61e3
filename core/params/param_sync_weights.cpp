#include <algorithm>

#include "core/device/region.hpp"
#include "core/params/labels.hpp"
#include "core/params/param_sync.hpp"

/// The weights' half of ParamSync: opens and closes the visits of the schedule. A group goes Stale -> Staged once a
/// step; a slot Free -> InFlight -> Gathered -> Ready -> Free once a visit.
namespace tessera {

Use ParamSync::operand(Stream& stream, ParamId param, Side side) {
  ParamGroup& group = group_of(param);
  const BucketId id = layout_.placement(param).bucket;
  const ParamBucket& own = *buckets_[id];
  const Sides needed = payload_of(layout_.buckets()[id].key.format, own.travel, side);
  const Visit* now = cursor_.open(group.pool);
  if (!now || !now->serves(group.id, needed)) {
    const Visit* next = cursor_.upcoming(group.pool);
    if (!next || !next->serves(group.id, needed))
      throw StateError("group " + std::to_string(group.id.value) + ": an access that no dry pass saw here");
    open(stream, group.pool);
    now = next;
  }
  ++group.uses;
  return {*this, param, own.wire->operand(param, side, now->slot)};
}

/// Whether a resident group has been staged and its gather not yet post-processed.
bool ParamSync::in_transit(const ParamGroup& group) const {
  return group.weights.state() == WeightState::staged && !cursor_.open(group.pool);
}

/// The group whose staged bytes occupy the ring slot that `group` needs; null if the slot is free.
const ParamGroup* ParamSync::ring_holder(const ParamGroup& group) const {
  const auto holds = [&](const ParamGroup& other) {
    return other.id != group.id && other.staged_in == StagedIn::ring && other.ring_slot == group.ring_slot &&
           in_transit(other);
  };
  const auto holder = std::ranges::find_if(groups_, holds);
  return holder == groups_.end() ? nullptr : &*holder;  // mutation: slot_of_the_ring_in_use
}

/// Opens the pool's next visit, and closes the one before. The gather of the visit that it prefetches begins before its
/// own is awaited.
void ParamSync::open(Stream& stream, PoolId pool) {
  const Region region(stream, RegionName::publish);
  const Visit& visit = *cursor_.upcoming(pool);
  if (const Visit* before = cursor_.open(pool)) close(*before);
  if (visit.staged == StagedAt::gather && groups_[visit.group].weights.state() == WeightState::stale)
    if (const ParamGroup* holder = ring_holder(groups_[visit.group])) open_staged(stream, holder->pool);
  stage_with_gather(stream, visit);
  start_gather(stream, visit);
  if (const Visit* prefetch = cursor_.at(pool, visit.prefetch)) stage_with_gather(stream, *prefetch);
  open_staged(stream, pool);
}

/// The same for a visit that is staged, or under way; prefetches what is staged.
void ParamSync::open_staged(Stream& stream, PoolId pool) {
  const Visit& visit = *cursor_.upcoming(pool);
  start_gather(stream, visit);
  if (const Visit* prefetch = cursor_.at(pool, visit.prefetch)) start_gather(stream, *prefetch);
  finish_gather(stream, visit);
  cursor_.advance(pool);
}

/// Stages a group of the ring whose turn it is, unless its slot of the ring is still in use.
void ParamSync::stage_with_gather(Stream& stream, const Visit& visit) {
  const ParamGroup& group = groups_[visit.group];
  if (visit.staged == StagedAt::publication || group.weights.state() != WeightState::stale) return;
  if (!ring_holder(group)) stage(stream, {&visit.group, 1});
}

/// Opens the visit of a staged group's shard, from which its weights are gathered, unless it is open.
void ParamSync::open_shard(Stream& stream, const ParamGroup& group) {
  if (group.shard_pool == PoolId{} || cursor_.open(group.shard_pool)) return;
  if (group.weights.state() == WeightState::staged) open_staged(stream, group.shard_pool);
}

/// Free -> InFlight: starts the all-gather of a visit, unless it is under way or its group is not staged.
void ParamSync::start_gather(Stream& stream, const Visit& visit) {
  ParamGroup& group = groups_[visit.group];
  WeightSlot& slot = slot_of(visit);
  if (slot.visit == &visit || group.weights.state() != WeightState::staged) return;
  const Level level = schedule_.pools[visit.pool].level;
  if (level == Level::inside) open_shard(stream, group);  // mutation: gathered_from_shards_of_the_step_before
  slot.machine.to(SlotState::in_flight, group.id);
  slot.visit = &visit;
  Communicator& ranks = mesh_.of(group.processes, level);
  if (ranks.size() > 1) {  // mutation: empty_shard_skips_the_gather
    slot.exchanges.clear();
    for (const std::unique_ptr<Wire>& wire : wires_) {
      // mutation: columnwise_side_of_the_first_publish
      const Gathered held{visit.slot, visit.sides};
      const std::span<const Exchange> exchanges =
          level == Level::inside ? wire->exchanges(group.id, held) : wire->exchanges_across(group.id);
      slot.exchanges.insert(slot.exchanges.end(), exchanges.begin(), exchanges.end());
    }
    const char* const label = level == Level::inside ? label::weights : label::shards;
    slot.gather = ranks.submit(stream, {Collective::all_gather, slot.exchanges, group.id.value, label});
  }
  slot.launches_before = stream.launches();
}

/// InFlight -> Gathered -> Ready: waits for the all-gather, then rebuilds what did not travel.
void ParamSync::finish_gather(Stream& stream, const Visit& visit) {
  WeightSlot& slot = slot_of(visit);
  if (slot.gather) {
    if (stream.launches() > slot.launches_before) ++overlaps_.now.gathers;
    slot.gather.wait(stream);
  }
  slot.machine.to(SlotState::gathered, visit.group);
  const bool whole = schedule_.pools[visit.pool].level == Level::inside;
  const Gathered held{visit.slot, visit.sides};
  if (whole)
    for (const std::unique_ptr<Wire>& wire : wires_) wire->post_process(stream, visit.group, held);
  slot.machine.to(SlotState::ready, visit.group);
  if (observer_ && whole)
    tessera::visit_planes(layout_, groups_[visit.group], held, [&](const Plane& plane) { observer_(stream, plane); });
}

/// Ready -> Free.
void ParamSync::close(const Visit& visit) {
  const ParamGroup& group = groups_[visit.group];
  if (group.uses > 0)
    throw StateError(group.id, group.weights.epoch(), "an operand in use", name_of(SlotState::free));
  WeightSlot& slot = slot_of(visit);
  slot.machine.to(SlotState::free, group.id);
  slot.visit = nullptr;
}

/// Ends a pass: closes its visits. If it was cut short, finishes its prefetch first.
void ParamSync::end_pass() {
  for (PoolId pool : slots_.ids()) {
    if (schedule_.pools[pool].residency == Residency::resident) continue;
    if (const Visit* now = cursor_.open(pool)) close(*now);
    for (WeightSlot& slot : slots_[pool]) {
      if (!slot.visit) continue;
      finish_gather(device_.compute(), *slot.visit);
      close(*slot.visit);
    }
    cursor_.clear(pool);
  }
}

/// Brings every group to Stale and closes every visit. A resident visit that has not been opened since the last
/// publication is opened first, since its memory will be staged anew. A group that waits for a slot of the ring is
/// Stale already.
void ParamSync::invalidate(Stream& stream) {  // mutation: gathered_mark_outlives_an_evaluation.1
  end_pass();
  for (const ParamGroup& group : groups_)
    if (group.uses > 0)
      throw StateError(group.id, group.weights.epoch(), "an operand in use", name_of(WeightState::stale));
  for (const std::unique_ptr<Wire>& wire : wires_) wire->release_claims();  // mutation: weights_of_a_dropped_update
  for (const Visit& visit : schedule_.resident)
    if (in_transit(groups_[visit.group])) open_staged(stream, visit.pool);
  for (const Visit& visit : schedule_.shards) open_shard(stream, groups_[visit.group]);
  for (const Visits* visits : {&schedule_.shards, &schedule_.resident}) {
    for (const Visit& visit : *visits) {
      if (cursor_.open(visit.pool)) close(visit);
      cursor_.clear(visit.pool);
    }
    cursor_.begin(*visits);
  }
  for (ParamGroup& group : groups_)
    if (group.weights.state() != WeightState::stale) group.weights.to(WeightState::stale);
}

/// Agrees on amaxes: one all-reduce over each process group with formats that need it.
void ParamSync::reduce_amaxes(Stream& stream) {
  for (const std::unique_ptr<Wire>& wire : wires_) wire->measure_amaxes(stream);
  for (ProcessGroup processes : schedule_.amaxes) {
    agreement_.clear();
    for (const std::unique_ptr<Wire>& wire : wires_)
      for (const Tensor& amaxes : wire->amaxes(processes)) agreement_.push_back({{}, amaxes, {}, {}});
    mesh_.of(processes).submit(stream, {Collective::all_reduce_max, agreement_, -1, "amaxes"}).wait(stream);
  }
}

/// Stale -> Staged.
void ParamSync::stage(Stream& stream, std::span<const GroupId> groups) {
  for (const std::unique_ptr<Wire>& wire : wires_) wire->stage(stream, groups);
  for (GroupId id : groups) groups_[id].weights.to(WeightState::staged);
}

}  // namespace tessera
