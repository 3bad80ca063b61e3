#pragma once
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "core/comm/mpi_watch.hpp"

namespace tessera {

/// Watches calls of libraries (HDF5, MPI-IO) that wait for other ranks in blocking calls of MPI, where MpiWatch does
/// not get to look: from a thread. Only while such a call lasts does the thread call MPI, so the main thread is alone
/// in it at all other times. With an MPI below MPI_THREAD_MULTIPLE it cannot report, and ends its own process when the
/// time is over.
class MpiSentinel {
 public:
  /// Local.
  explicit MpiSentinel(MpiWatch& watch);
  MpiSentinel(const MpiSentinel&) = delete;
  MpiSentinel& operator=(const MpiSentinel&) = delete;

  /// The main thread enters such a call, `label` of which it may change meanwhile, or one within it. Local.
  void begin(const Waiting& at, std::chrono::seconds timeout);
  /// It is back. Local.
  void end();

 private:
  using Clock = std::chrono::steady_clock;
  void guard(const std::stop_token& stop);
  void look();

  MpiWatch& watch_;
  bool may_call_ = false;  ///< MPI, while the main thread does
  std::mutex mutex_;       ///< of what follows
  std::condition_variable_any asleep_;
  int depth_ = 0;  ///< calls within each other
  Waiting at_;
  std::string label_;
  std::chrono::seconds timeout_{};
  Clock::time_point deadline_;
  std::jthread thread_;  ///< the last member: ends first
};

}  // namespace tessera
