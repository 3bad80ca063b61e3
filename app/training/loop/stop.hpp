#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "core/comm/control.hpp"

namespace tessera {

/// Ends a run before its last step, agreed by all ranks between two steps: by a signal to any rank (TERM, USR1, USR2,
/// INT), --stop-at or --time-limit. A second INT more than a second after the first ends the process at once. One a
/// process. Make it before MPI and all threads: time counts from then on. A thread of its own takes the signals, which
/// all others block. It does so until the process ends, so that a signal after the last step does not change the exit
/// code.
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

  /// Whether the run must end after step `step`. `save`: measured time of a save; the time limit leaves room for a save
  /// and one more step. Collective over the world.
  bool due(std::int64_t step, std::chrono::duration<double> save, Control& control);
  /// Whether a signal or the time limit ends the run before more is done than a save. Asked between the passes of an
  /// evaluation or the tokens of a sample, which are then abandoned. Once it does, due() says so too. Collective over
  /// the world.
  bool presses(std::chrono::duration<double> save, Control& control);
  /// Cause of the end: a signal's name, --stop-at, or --time-limit; the same on every rank. Local.
  const std::string& cause() const { return cause_; }

  /// Works around lost exit codes under Hydra; call it last, after MPI_Finalize. After a signal it leaves a child
  /// process that keeps the output open for a fifth of a second. Once Hydra has forwarded a signal, it keeps the exit
  /// codes only of ranks that have ended while their output was open. It reports 0 for the others. Local.
  void keep_exit_codes() const;

 private:
  using Clock = std::chrono::steady_clock;
  std::chrono::duration<double> lap();
  bool agreed(int mine, Control& control);
  bool late(std::chrono::duration<double> needed) const;

  Limits limits_;
  Clock::time_point begin_ = Clock::now(), last_ = begin_;
  std::chrono::duration<double> longest_step_{0};
  bool stepping_ = false;  ///< whether a step has begun since the last call
  bool pressed_ = false;
  std::string cause_;
};

}  // namespace tessera
