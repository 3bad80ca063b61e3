#include <algorithm>

#include "core/device/region.hpp"
#include "core/params/param_sync.hpp"

/// The weights' half of ParamSync: Stale -> Staged -> InFlight -> Gathered -> Ready, once a step.
namespace tessera {

Operand ParamSync::operand(Stream& stream, ParamId param, Side side) {
  ParamGroup& group = group_of(param);
  if (group.weights.state() != WeightState::ready) walk_to_ready(stream, group);
  ++group.uses;
  return bucket(layout_.place(param).bucket).wire->operand(param, side);
}

/// Whatever is left to Ready. With overlap the next group's all-gather is begun before this one's is awaited.
void ParamSync::walk_to_ready(Stream& stream, ParamGroup& group) {
  const Region region(stream, RegionName::publish);
  if (group.weights.state() == WeightState::stale)
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

/// Who has staged bytes in the slot of the ring that a group needs.
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

/// Before a group's gradients are written: what is staged in them has its all-gather first. Only groups that no
/// forward used are not there.
void ParamSync::end_lease(Stream& stream, ParamGroup& group) {
  if (group.leased()) walk_to_ready(stream, group);
}

/// Ready -> Stale, every group. One that nothing used since the last publish has its all-gather still to do, before
/// its memory is staged anew; one that waits for a slot of the ring stays Stale.
void ParamSync::outdate(Stream& stream) {
  for (const ParamGroup& group : groups_) {
    if (group.uses > 0)
      throw StateError(group.id, group.weights.epoch(), "an operand in use", name_of(WeightState::stale));
    if (group.staging.place == Staging::Place::gradients && group.gradients.state() != GradientState::empty)
      throw StateError(group.id, group.weights.epoch(), name_of(group.gradients.state()), "gradients on lease");
  }
  for (GroupId id : order_)
    if (groups_[id].in_transit()) conclude(stream, groups_[id]);
  for (ParamGroup& group : groups_)
    if (group.weights.state() == WeightState::ready) group.weights.to(WeightState::stale);
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
    if (groups_[id].weights.state() == WeightState::stale && !slot_holder(groups_[id])) staging_.push_back(id);
  if (staging_.empty()) return;
  for (const std::unique_ptr<Wire>& wire : wires_) wire->stage(stream, staging_);
  for (GroupId id : staging_) groups_[id].weights.to(WeightState::staged);
  staging_.clear();
}

/// Staged -> InFlight. A group under way or Ready is left as it is.
void ParamSync::begin_gather(Stream& stream, ParamGroup& group) {
  if (group.weights.state() != WeightState::staged) return;
  if (group.place.size > 1)
    group.gather = mesh_.of(group.processes)
                       .submit(stream, {Collective::all_gather, group.all_gather, group.id.value, "weights"});
  group.launches_before_gather = stream.launches();
  group.weights.to(WeightState::in_flight);
}

/// InFlight -> Gathered -> Ready.
void ParamSync::finish_gather(Stream& stream, ParamGroup& group) {
  if (group.gather) {
    if (stream.launches() > group.launches_before_gather) ++overlapped_gathers_;
    group.gather.wait(stream);
  }
  group.weights.to(WeightState::gathered);
  for (const std::unique_ptr<Wire>& wire : wires_) wire->consume(stream, group.id);
  group.weights.to(WeightState::ready);
  if (observer_) observer_(stream, group.id);
}

}  // namespace tessera
