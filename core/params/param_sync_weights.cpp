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
  const auto begin = [&](GroupId id) {
    stage(stream, {&id, 1});
    begin_gather(stream, groups_[id]);
  };
  begin(group.id);
  if (rules_.gather == Overlap::on && group.next != GroupId{}) begin(group.next);
  finish_gather(stream, group);
}

/// Ready -> Stale, every group. One that nothing used since the last publish has its all-gather still to do, before
/// its memory is staged anew.
void ParamSync::outdate(Stream& stream) {
  for (const ParamGroup& group : groups_)
    if (group.uses > 0)
      throw StateError(group.id, group.weights.epoch(), "an operand in use", name_of(WeightState::stale));
  for (GroupId id : order_) {
    const WeightState state = groups_[id].weights.state();
    if (state == WeightState::staged || state == WeightState::in_flight) walk_to_ready(stream, groups_[id]);
  }
  for (ParamGroup& group : groups_)
    if (group.weights.state() == WeightState::ready) group.weights.to(WeightState::stale);
}

/// One all-reduce over each process group whose formats need it.
void ParamSync::agree(Stream& stream) {
  for (const std::unique_ptr<Wire>& wire : wires_) wire->measure(stream);
  for (ProcessGroup processes : {ProcessGroup::dense, ProcessGroup::expert}) {
    agreement_.clear();
    for (const std::unique_ptr<Wire>& wire : wires_)
      if (const Tensor amaxes = wire->agreed(processes)) agreement_.push_back({{}, amaxes, {}, {}});
    Communicator& ranks = mesh_.of(processes);
    if (agreement_.empty() || ranks.size() == 1) continue;
    ranks.submit(stream, {Collective::all_reduce_max, agreement_, -1, "amaxes"}).wait(stream);
  }
}

/// Stale -> Staged. Groups that are not Stale are left as they are.
void ParamSync::stage(Stream& stream, std::span<const GroupId> groups) {
  staging_.clear();
  for (GroupId id : groups)
    if (groups_[id].weights.state() == WeightState::stale) staging_.push_back(id);
  if (staging_.empty()) return;
  for (const std::unique_ptr<Wire>& wire : wires_) wire->stage(stream, staging_);
  for (GroupId id : staging_) groups_[id].weights.to(WeightState::staged);
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
