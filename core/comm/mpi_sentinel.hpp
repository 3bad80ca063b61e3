#pragma once
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "core/comm/mpi_watch.hpp"

namespace tessera {

/// The watchdog of blocking MPI calls inside libraries (HDF5, MPI-IO), in which the main thread cannot poll. A thread
/// polls instead, joins reports of other ranks, and reports a call that takes longer than the time-out. The thread
/// calls MPI only while such a call lasts. Where MPI provides less than MPI_THREAD_MULTIPLE it must not. Then it prints
/// where this rank waits and ends this process alone, and the launcher ends the others.
class MpiSentinel {
 public:
  /// Local.
  explicit MpiSentinel(MpiWatch& watch);
  MpiSentinel(const MpiSentinel&) = delete;
  MpiSentinel& operator=(const MpiSentinel&) = delete;

  /// Starts the time-out of a call. A call nested in another shares the outer call's time-out. Copies `at.label`.
  /// Local.
  void begin(const Waiting& at, std::chrono::seconds timeout);
  /// Ends the innermost call. Local.
  void end();

 private:
  using Clock = std::chrono::steady_clock;
  void guard(const std::stop_token& stop);
  void check();

  MpiWatch& watch_;
  bool may_call_mpi_ = false;  ///< MPI allows calls from this thread too: MPI_THREAD_MULTIPLE
  std::mutex mutex_;           ///< guards the members that follow
  std::condition_variable_any asleep_;
  int depth_ = 0;  ///< how many calls are nested now; 0: none to watch
  Waiting at_;
  std::string label_;
  std::chrono::seconds timeout_{};
  Clock::time_point deadline_;
  std::jthread thread_;  ///< the last member: joined before the members that it uses are destroyed
};

}  // namespace tessera
