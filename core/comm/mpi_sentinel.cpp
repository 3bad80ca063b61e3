#include "core/comm/mpi_sentinel.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

namespace tessera {

MpiSentinel::MpiSentinel(MpiWatch& watch) : watch_(watch) {
  int level = MPI_THREAD_SINGLE;
  MPI_Query_thread(&level);
  may_call_mpi_ = level == MPI_THREAD_MULTIPLE;
  thread_ = std::jthread([this](const std::stop_token& stop) { guard(stop); });
}

void MpiSentinel::begin(const Waiting& at, std::chrono::seconds timeout) {
  const std::lock_guard lock(mutex_);
  if (depth_++ > 0) return;
  at_ = at;
  label_ = at.label;
  timeout_ = timeout;
  deadline_ = Clock::now() + timeout;
}

void MpiSentinel::end() {
  const std::lock_guard lock(mutex_);
  --depth_;
}

void MpiSentinel::guard(const std::stop_token& stop) {
  using namespace std::chrono_literals;
  constexpr auto between_checks = 250ms;  // polling costs less than a wake-up for each of 10,000 datasets
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    asleep_.wait_for(lock, stop, between_checks, [] { return false; });
    if (depth_ > 0 && !stop.stop_requested()) check();
  }
}

/// Runs with the mutex locked, so that the main thread cannot return from end() while a report is made; the report ends
/// the process.
void MpiSentinel::check() {
  at_.label = label_.c_str();
  if (may_call_mpi_) watch_.check(at_);
  if (Clock::now() < deadline_) return;
  if (may_call_mpi_) watch_.overdue(at_, timeout_);
  fmt::print(stderr, "[r{} {}] communication failed: {}\n", watch_.rank(), watch_.host(), watch_.waited(at_, timeout_));
  watch_.tell(Exit::communication);
  std::fflush(nullptr);
  std::_Exit(static_cast<int>(Exit::communication));
}

}  // namespace tessera
