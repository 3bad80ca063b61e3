#pragma once
#include <cstdint>

#include "kernels/base/error.hpp"

namespace tessera {

enum class WeightState : std::uint8_t { ready, stale, staged, in_flight, gathered };
enum class GradientState : std::uint8_t { empty, accumulating, reducing, reduced };
const char* name_of(WeightState s);
const char* name_of(GradientState s);

/// A step of a group's state machine that its edges do not allow.
class StateError : public Error {
 public:
  StateError(int group, std::int64_t epoch, const char* from, const char* to);
};

/// ready(e) -> stale -> staged(e+1) -> in_flight -> gathered -> ready(e+1), once a step.
/// A group starts stale at epoch 0: initialisation and load gather like any step.
class WeightMachine {
 public:
  explicit WeightMachine(int group = 0) : group_(group) {}
  WeightState state() const { return state_; }
  std::int64_t epoch() const { return epoch_; }
  void to(WeightState next);

 private:
  int group_;
  WeightState state_ = WeightState::stale;
  std::int64_t epoch_ = 0;
};

/// empty -first write-> accumulating -last write-> reducing -wait-> reduced -step or drop-> empty; empty -nothing
/// written-> reducing; accumulating -drop-> empty.
class GradientMachine {
 public:
  explicit GradientMachine(int group = 0) : group_(group) {}
  GradientState state() const { return state_; }
  void to(GradientState next);

 private:
  int group_;
  GradientState state_ = GradientState::empty;
  std::int64_t epoch_ = 0;
};

}  // namespace tessera
