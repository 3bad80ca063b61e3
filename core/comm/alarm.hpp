#pragma once
#include <chrono>
#include <string>

#include "kernels/base/error.hpp"

namespace tessera {

/// A bound on the time of what this process cannot interrupt. While it lives, the process ends when `limit` is over,
/// wherever its threads are held (MPI_Init, MPI_Abort, MPI_Finalize). One a process, or nested, where the inner one
/// counts. By SIGALRM, because a library may hold every thread.
class Alarm {
 public:
  /// At the limit prints "`what`\n", unless it is empty, and ends this process with `code`, without unwinding. Local.
  Alarm(std::chrono::seconds limit, Exit code, std::string what);
  ~Alarm();
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

 private:
  const std::string what_;
  const int code_;
  Alarm* const before_;
  unsigned left_ = 0;  ///< seconds that the alarm before had left
};

}  // namespace tessera
