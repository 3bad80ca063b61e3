#pragma once
#include <cstdint>
#include <string>

#include "core/layout/layout.hpp"
#include "kernels/base/error.hpp"

namespace tessera {

enum class WeightState : std::uint8_t { ready, stale, staged, in_flight, gathered };
enum class GradientState : std::uint8_t { empty, accumulating, reducing, reduced };
const char* name_of(WeightState s);
const char* name_of(GradientState s);

/// Thrown if a state machine is asked for a transition that it does not have, or a token for a phase that is over.
class StateError : public Error {
 public:
  explicit StateError(const std::string& what) : Error(Exit::internal, what) {}
  StateError(GroupId group, std::int64_t epoch, const char* from, const char* to);
};

/// Whether a group's weights and gradients are whole on every rank always, or during visits only, ranks keeping slices
/// (full sharding).
enum class Residing : std::uint8_t { always, visiting };

/// State machine of one group's weights in one place: ready(e) -> stale -> staged(e+1) -> in_flight -> gathered ->
/// ready(e+1), once a step. It starts at stale, epoch 0: initialisation and load gather like any step. With
/// Residing::visiting also ready -release-> staged and staged -step-> stale.
class WeightMachine {
 public:
  explicit WeightMachine(GroupId group = {}, Residing residing = Residing::always)
      : group_(group), residing_(residing) {}
  WeightState state() const { return state_; }
  std::int64_t epoch() const { return epoch_; }
  void to(WeightState next);

 private:
  GroupId group_;
  Residing residing_;
  WeightState state_ = WeightState::stale;
  std::int64_t epoch_ = 0;
};

/// State machine of one group's gradients: empty -first write-> accumulating -last write-> reducing -wait-> reduced
/// -step or drop-> empty; empty -nothing written-> reducing; accumulating -drop-> empty. With Residing::visiting also
/// reducing -first write of the next micro-batch-> accumulating.
class GradientMachine {
 public:
  explicit GradientMachine(GroupId group = {}, Residing residing = Residing::always)
      : group_(group), residing_(residing) {}
  GradientState state() const { return state_; }
  void to(GradientState next);

 private:
  GroupId group_;
  Residing residing_;
  GradientState state_ = GradientState::empty;
  std::int64_t epoch_ = 0;
};

}  // namespace tessera
