#include <algorithm>

#include "core/device/region.hpp"
#include "core/params/param_sync.hpp"

/// The weights' half of ParamSync: Stale -> Staged -> InFlight -> Gathered -> Ready, once a step. Pooled weights also
/// go from Ready to Staged, once for each visit: param_sync_visits.cpp.
namespace tessera {

Operand ParamSync::operand(Stream& stream, ParamId param, Side side) {
  ParamGroup& group = group_of(param);
  const BucketId id = layout_.place(param).bucket;
  const ParamBucket& own = bucket(id);
  int place = 0;
  if (group.pooled())
    place = visit(stream, group, payload_of(layout_.buckets()[id].key.format, own.way, side));
  else if (group.state() != WeightState::ready)
    walk_to_ready(stream, group);
  ++group.uses;
  return own.wire->operand(param, side, place);
}

/// Walks a group to Ready. With overlap the next group's all-gather begins before this one's is awaited (prefetch).
void ParamSync::walk_to_ready(Stream& stream, ParamGroup& group) {
  const Region region(stream, RegionName::publish);
  if (group.state() == WeightState::stale)
    if (ParamGroup* holder = slot_holder(group)) conclude(stream, *holder);
  stage(stream, {&group.id, 1});
  begin_gather(stream, group);
  if (rules_.gather == Overlap::on && group.next != GroupId{}) stage(stream, {&group.next, 1});
  conclude(stream, group);
}

/// Staged or InFlight -> Ready; with overlap first begins the next group's all-gather, if that group is staged.
void ParamSync::conclude(Stream& stream, ParamGroup& group) {
  begin_gather(stream, group);
  if (rules_.gather == Overlap::on && group.next != GroupId{}) begin_gather(stream, groups_[group.next]);
  finish_gather(stream, group);
}

/// The group whose staged bytes occupy the ring slot that `group` needs; null if the slot is free.
ParamGroup* ParamSync::slot_holder(const ParamGroup& group) {
  if (group.staging.place != Staging::Place::ring) return nullptr;
  const auto holds = [&](const ParamGroup& other) {
    const bool chosen = std::ranges::find(staging_, other.id) != staging_.end();
    return other.id != group.id && other.staging.place == Staging::Place::ring &&
           other.staging.slot == group.staging.slot && (chosen || other.in_transit());
  };
  const auto holder = std::ranges::find_if(groups_, holds);
  return holder == groups_.end() ? nullptr : &*holder;
}

/// Ends the lease on a group's gradients before they are written: finishes the all-gather of the bf16 staged in them.
/// Only a group that forward has not used can still have a lease.
void ParamSync::end_lease(Stream& stream, ParamGroup& group) {
  if (group.leased()) walk_to_ready(stream, group);
}

/// Staging takes every slice again, those too that an update had claimed.
void ParamSync::release_claims() {
  for (const std::unique_ptr<Wire>& wire : wires_) wire->release_claims();
}

/// Refuses to stage bf16 in the memory of gradients that are in use.
void ParamSync::require_no_lease() const {
  for (const ParamGroup& group : groups_)
    if (group.staging.place == Staging::Place::gradients && group.gradients.state() != GradientState::empty)
      throw StateError(group.id, group.residences.front().weights.epoch(), name_of(group.gradients.state()),
                       "gradients on lease");
}

/// Brings every group to Stale. A group that has not been used since the last publish first finishes its all-gather,
/// since its memory will be staged anew. A group that waits for a ring slot is Stale already. Pooled groups end their
/// visit.
void ParamSync::outdate(Stream& stream) {
  end_passes();
  for (const ParamGroup& group : groups_)
    if (group.uses > 0)
      throw StateError(group.id, group.residences.front().weights.epoch(), "an operand in use",
                       name_of(WeightState::stale));
  release_claims();
  for (GroupId id : order_)
    if (!groups_[id].pooled() && groups_[id].in_transit()) conclude(stream, groups_[id]);
  for (ParamGroup& group : groups_)
    for (Residence& residence : group.residences)
      if (residence.weights.state() != WeightState::stale) residence.weights.to(WeightState::stale);
}

/// Agrees on amaxes: one all-reduce over each process group with formats that need it.
void ParamSync::agree(Stream& stream) {
  for (const std::unique_ptr<Wire>& wire : wires_) wire->measure(stream);
  for (ProcessGroup processes : process_groups) {
    agreement_.clear();
    for (const std::unique_ptr<Wire>& wire : wires_)
      for (const Tensor& amaxes : wire->agreed(processes)) agreement_.push_back({{}, amaxes, {}, {}});
    Communicator& ranks = mesh_.of(processes);
    if (agreement_.empty() || ranks.size() == 1) continue;
    ranks.submit(stream, {Collective::all_reduce_max, agreement_, -1, "amaxes"}).wait(stream);
  }
}

/// Stale -> Staged. Leaves out groups that are not Stale and groups whose ring slot is in use.
void ParamSync::stage(Stream& stream, std::span<const GroupId> groups) {
  staging_.clear();
  for (GroupId id : groups)
    if (groups_[id].state() == WeightState::stale && !slot_holder(groups_[id])) staging_.push_back(id);
  if (staging_.empty()) return;
  for (const std::unique_ptr<Wire>& wire : wires_) wire->stage(stream, staging_);
  for (GroupId id : staging_)
    for (Residence& residence : groups_[id].residences) residence.weights.to(WeightState::staged);
  staging_.clear();
}

/// Staged -> InFlight: begins the all-gather. Does nothing in other states.
void ParamSync::begin_gather(Stream& stream, ParamGroup& group, const Held& held) {
  Residence& residence = group.residences[static_cast<std::size_t>(held.place)];
  if (residence.weights.state() != WeightState::staged) return;
  residence.sides = held.sides;
  if (group.place.size > 1) {
    residence.exchanges.clear();
    for (const std::unique_ptr<Wire>& wire : wires_) {
      const std::span<const Exchange> exchanges = wire->exchanges(group.id, held);
      residence.exchanges.insert(residence.exchanges.end(), exchanges.begin(), exchanges.end());
    }
    residence.gather = mesh_.of(group.processes)
                           .submit(stream, {Collective::all_gather, residence.exchanges, group.id.value, "weights"});
  }
  residence.launches_before_gather = stream.launches();
  residence.weights.to(WeightState::in_flight);
}

/// InFlight -> Gathered -> Ready: waits for the all-gather, then rebuilds what did not travel.
void ParamSync::finish_gather(Stream& stream, ParamGroup& group, int place) {
  Residence& residence = group.residences[static_cast<std::size_t>(place)];
  if (residence.gather) {
    if (stream.launches() > residence.launches_before_gather) ++overlapped_gathers_;
    residence.gather.wait(stream);
  }
  residence.weights.to(WeightState::gathered);
  const Held held{place, residence.sides};
  for (const std::unique_ptr<Wire>& wire : wires_) wire->consume(stream, group.id, held);
  residence.weights.to(WeightState::ready);
  if (observer_) visit_planes(group, held, [&](const Plane& plane) { observer_(stream, plane); });
}

}  // namespace tessera
