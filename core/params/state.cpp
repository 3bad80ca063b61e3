#include "core/params/state.hpp"

namespace tessera {

const char* name_of(WeightState s) {
  constexpr const char* names[] = {"Ready", "Stale", "Staged", "InFlight"};
  return names[static_cast<int>(s)];
}
const char* name_of(SlotState s) {
  constexpr const char* names[] = {"Free", "InFlight", "Gathered", "Ready"};
  return names[static_cast<int>(s)];
}
const char* name_of(GradientState s) {
  constexpr const char* names[] = {"Empty", "Accumulating", "Reducing", "Reduced"};
  return names[static_cast<int>(s)];
}

StateError::StateError(GroupId group, std::int64_t epoch, const char* from, const char* to)
    : StateError("group " + std::to_string(group.value) + ", epoch " + std::to_string(epoch) + ": " + from + " -> " +
                 to + " is not an edge of its state machine") {}

void WeightMachine::to(WeightState next) {
  using enum WeightState;
  const bool edge = (state_ == stale && next == staged) || (state_ == staged && next == stale);
  if (!edge) throw StateError(group_, epoch_, name_of(state_), name_of(next));
  if (state_ == stale) ++epoch_;
  state_ = next;
}

void SlotMachine::to(SlotState next, GroupId group) {
  using enum SlotState;
  const bool edge = (state_ == free && next == in_flight) || (state_ == in_flight && next == gathered) ||
                    (state_ == gathered && next == ready) || (state_ == ready && next == free);
  if (!edge)
    throw StateError("group " + std::to_string(group.value) + ", its slot: " + name_of(state_) + " -> " +
                     name_of(next) + " is not an edge of the state machine");
  state_ = next;
}

void GradientMachine::to(GradientState next) {
  using enum GradientState;
  const bool edge = (state_ == empty && (next == accumulating || next == reducing)) ||
                    (state_ == accumulating && (next == reducing || next == empty)) ||
                    (state_ == reducing && (next == reduced || next == accumulating)) ||
                    (state_ == reduced && next == empty);
  if (!edge) throw StateError(group_, epoch_, name_of(state_), name_of(next));
  if (next == empty) ++epoch_;
  state_ = next;
}

}  // namespace tessera
