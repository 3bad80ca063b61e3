#pragma once
#include <cstdint>
#include <string>

#include "core/layout/layout.hpp"
#include "kernels/base/error.hpp"

namespace tessera {

/// State of a group's weights: stale or staged, until a slot holds them; from then on that of the slot.
enum class WeightState : std::uint8_t { ready, stale, staged, in_flight };
/// State of a slot for gathered weights.
enum class SlotState : std::uint8_t { free, in_flight, gathered, ready };
enum class GradientState : std::uint8_t { empty, accumulating, reducing, reduced };
const char* name_of(WeightState s);
const char* name_of(SlotState s);
const char* name_of(GradientState s);

/// Thrown if a state machine is asked for a transition that it does not have, or a token for a phase that is over.
class StateError : public Error {
 public:
  explicit StateError(const std::string& what) : Error(Exit::internal, what) {}
  StateError(GroupId group, std::int64_t epoch, const char* from, const char* to);
};

/// State machine of one group's shards: stale -stage-> staged(e+1) -publication-> stale. It starts at stale, epoch 0:
/// initialisation and load gather like any step.
class WeightMachine {
 public:
  explicit WeightMachine(GroupId group = {}) : group_(group) {}
  WeightState state() const { return state_; }
  std::int64_t epoch() const { return epoch_; }
  void to(WeightState next);
  void replayed() { ++epoch_; }  ///< a whole step, which ends in the state where it began

 private:
  GroupId group_;
  WeightState state_ = WeightState::stale;
  std::int64_t epoch_ = 0;
};

/// State machine of one slot for gathered weights: free -start-> in_flight -await-> gathered -post-process-> ready
/// -close-> free. `group` is the one whose visit moves it.
class SlotMachine {
 public:
  SlotState state() const { return state_; }
  void to(SlotState next, GroupId group);

 private:
  SlotState state_ = SlotState::free;
};

/// State machine of one group's gradients: empty -first write-> accumulating -last write-> reducing -wait-> reduced
/// -step or drop-> empty. Further, reducing -first write of the next round-> accumulating; empty -nothing written->
/// reducing; accumulating -drop-> empty.
class GradientMachine {
 public:
  explicit GradientMachine(GroupId group = {}) : group_(group) {}
  GradientState state() const { return state_; }
  std::int64_t epoch() const { return epoch_; }
  void to(GradientState next);
  void replayed() { ++epoch_; }  ///< a whole step, which ends in the state where it began

 private:
  GroupId group_;
  GradientState state_ = GradientState::empty;
  std::int64_t epoch_ = 0;
};

}  // namespace tessera
