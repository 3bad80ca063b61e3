#pragma once
#include <chrono>
#include <optional>

#include "core/config/sections/comm.hpp"

namespace tessera {

/// The time-out of a run's waits. Where comm.timeout_s is open, waits inside steps have a shorter one, so that a host
/// that is lost without a word is noticed soon. The shorter one is 20 times the longest turn of the loop (a step, and
/// the saves and evaluations behind it), at least 30 s. It holds from the 21st turn on. Saves and evaluations keep the
/// whole: their first may take longer than all that was seen. Local.
class StepTimeout {
 public:
  using Clock = std::chrono::steady_clock;

  explicit StepTimeout(const CommConfig& comm) : whole_(comm.timeout()), given_(comm.timeout_s.known()) {}

  /// A turn of the loop begins, and the one before has ended. Returns the time-out inside its step.
  std::chrono::seconds begin_turn(Clock::time_point now);
  std::chrono::seconds outside() const { return whole_; }

 private:
  std::chrono::seconds whole_;
  bool given_;
  int turns_ = 0;  ///< that have ended
  Clock::duration longest_{};
  std::optional<Clock::time_point> began_;
};

}  // namespace tessera
