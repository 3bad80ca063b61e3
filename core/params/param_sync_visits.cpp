#include "core/device/region.hpp"
#include "core/params/param_sync.hpp"

/// Weights under full sharding: whole in a slot of the pool while a visit lasts. Staged -> InFlight -> Gathered ->
/// Ready -release-> Staged. With overlap the next visit's all-gather, into the other slot, overlaps with this visit's
/// computation (prefetch).
namespace tessera {

void ParamSync::start_passes(const std::array<std::vector<Visit>, 2>& visits, int passes) {
  end_passes();
  for (std::size_t i = 0; i < walks_.size(); ++i) walks_[i] = Walk(visits[i], passes);
}

/// Ends the passes: releases gathered weights. If a pass was cut short, finishes its prefetch first.
void ParamSync::end_passes() {
  for (Walk& walk : walks_) {
    if (walk.current()) leave(walk);
    if (const Visit* next = walk.next()) {
      ParamGroup& group = groups_[next->group];
      const auto slot = static_cast<std::size_t>(walk.next_slot());
      if (group.residences[slot].weights.state() == WeightState::in_flight) {
        finish_gather(device_.compute(), group, walk.next_slot());
        release(group, walk.next_slot());
      }
    }
    walk = Walk();
  }
}

/// Walks to the visit that an access belongs to: the current one, or the next. Returns its slot.
int ParamSync::visit(Stream& stream, ParamGroup& group, Sides needed) {
  Walk& walk = walk_of(group);
  if (const Visit* now = walk.current(); now && now->serves(group.id, needed)) {
    const WeightMachine& weights = group.residences[static_cast<std::size_t>(walk.current_slot())].weights;
    if (weights.state() != WeightState::ready)
      throw StateError(group.id, weights.epoch(), name_of(weights.state()), "an operand in use");
    return walk.current_slot();
  }
  const Region region(stream, RegionName::publish);
  const Visit* next = walk.next();
  if (!next || !next->serves(group.id, needed))
    throw StateError("group " + std::to_string(group.id.value) + ": an access that no dry pass saw here");
  if (walk.current()) leave(walk);
  begin_next_gather(stream, walk);
  walk.advance();
  if (rules_.gather == Overlap::on) begin_next_gather(stream, walk);
  finish_gather(stream, group, walk.current_slot());
  return walk.current_slot();
}

/// Begins the next visit's all-gather, unless it is under way already or there is no next visit.
void ParamSync::begin_next_gather(Stream& stream, const Walk& walk) {
  if (const Visit* next = walk.next()) begin_gather(stream, groups_[next->group], {walk.next_slot(), next->sides});
}

void ParamSync::leave(const Walk& walk) { release(groups_[walk.current()->group], walk.current_slot()); }

/// Ready -> Staged.
void ParamSync::release(ParamGroup& group, int place) {
  WeightMachine& weights = group.residences[static_cast<std::size_t>(place)].weights;
  if (group.uses > 0) throw StateError(group.id, weights.epoch(), "an operand in use", name_of(WeightState::staged));
  weights.to(WeightState::staged);
}

}  // namespace tessera
