#include <algorithm>

#include "core/device/region.hpp"
#include "core/params/param_sync.hpp"

/// The weights' half of ParamSync: Stale -> Staged -> InFlight -> Gathered -> Ready, once a step. Those that visit a
/// pool go on, Ready -> Staged, as often as they are used: param_sync_visits.cpp.
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

/// Staged or InFlight -> Ready; begins the next group's all-gather if that is staged.
void ParamSync::conclude(Stream& stream, ParamGroup& group) {
  begin_gather(stream, group);
  if (rules_.gather == Overlap::on && group.next != GroupId{}) begin_gather(stream, groups_[group.next]);
  finish_gather(stream, group);
}

/// The group whose staged bytes are in the slot of the ring that a group needs.
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

/// Before a group's gradients are written: finishes the all-gather of what is staged in them. Only groups that no
/// forward used have one left.
void ParamSync::end_lease(Stream& stream, ParamGroup& group) {
  if (group.leased()) walk_to_ready(stream, group);
}

/// Ready -> Stale, every group. One that nothing used since the last publish has its all-gather still to do, before
/// its memory is staged anew; one that waits for a slot of the ring stays Stale. Those that visit a pool end their
/// visit.
void ParamSync::outdate(Stream& stream) {
  end_passes();
  for (const ParamGroup& group : groups_) {
    if (group.uses > 0)
      throw StateError(group.id, group.residences.front().weights.epoch(), "an operand in use",
                       name_of(WeightState::stale));
    if (group.staging.place == Staging::Place::gradients && group.gradients.state() != GradientState::empty)
      throw StateError(group.id, group.residences.front().weights.epoch(), name_of(group.gradients.state()),
                       "gradients on lease");
  }
  for (GroupId id : order_)
    if (!groups_[id].pooled() && groups_[id].in_transit()) conclude(stream, groups_[id]);
  for (ParamGroup& group : groups_)
    for (Residence& residence : group.residences)
      if (residence.weights.state() != WeightState::stale) residence.weights.to(WeightState::stale);
}

/// One all-reduce over each process group whose formats need it.
void ParamSync::agree(Stream& stream) {
  for (const std::unique_ptr<Wire>& wire : wires_) wire->measure(stream);
  for (ProcessGroup processes : {ProcessGroup::dense, ProcessGroup::expert}) {
    agreement_.clear();
    for (const std::unique_ptr<Wire>& wire : wires_)
      for (const Tensor& amaxes : wire->agreed(processes)) agreement_.push_back({{}, amaxes, {}, {}});
    Communicator& ranks = mesh_.of(processes);
    if (agreement_.empty() || ranks.size() == 1) continue;
    ranks.submit(stream, {Collective::all_reduce_max, agreement_, -1, "amaxes"}).wait(stream);
  }
}

/// Stale -> Staged. Groups that are not Stale, or whose slot of the ring is in use, are left as they are.
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

/// Staged -> InFlight. A group under way or Ready is left as it is.
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

/// InFlight -> Gathered -> Ready.
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
