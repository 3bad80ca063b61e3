#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "core/comm/control.hpp"

namespace tessera {

/// What ends a run before its last step, agreed by all ranks between two steps: a signal to any of them (TERM, USR1,
/// USR2, INT), a step that was named, or time that runs out. A second INT more than a second after the first leaves at
/// once. One a process; signals are remembered and the time counts from its making, which comes before MPI's. Signals
/// are heard until the process ends: one that comes after the last boundary must not take its exit code.
class Stop {
 public:
  struct Limits {
    std::optional<std::int64_t> step;
    std::optional<std::chrono::seconds> time;
  };
  Stop();
  Stop(const Stop&) = delete;
  Stop& operator=(const Stop&) = delete;

  void limit(const Limits& limits) { limits_ = limits; }

  /// `save` is how long a save takes, as measured; the time limit leaves room for it and for one more step. Collective.
  bool due(std::int64_t step, std::chrono::duration<double> save, Control& control);
  /// What was due: a signal's name, --stop-at, or --time-limit; the same on every rank.
  const std::string& cause() const { return cause_; }

  /// To be called last, after MPI_Finalize: where a signal came, leaves a child that holds the output
  /// open for a fifth of a second. Hydra, once it has forwarded a signal, keeps the exit codes of those ranks alone
  /// that it finds ended while their output is open, and reports 0 for the others.
  void outlast_ranks() const;

 private:
  using Clock = std::chrono::steady_clock;
  Limits limits_;
  Clock::time_point begin_ = Clock::now(), last_ = begin_;
  std::chrono::duration<double> longest_step_{0};
  bool stepped_ = false;
  std::string cause_;
};

}  // namespace tessera
