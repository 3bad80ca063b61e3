#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/stream.hpp"

namespace tessera {

/// A kernel, copy or fill on this process's GPU. Times are nanoseconds of the host's steady clock.
struct KernelRun {
  std::string name;
  std::uint32_t stream = 0;  ///< as KernelLog::number_of says
  std::int64_t begin = 0, end = 0;
};

/// Logs the GPU's kernels while it lives, by CUPTI, a library of the CUDA toolkit that it loads. Empty on the host. One
/// a process at a time. The device must be idle when it is made and at take(). Local.
class KernelLog {
 public:
  KernelLog();
  ~KernelLog();
  KernelLog(const KernelLog&) = delete;
  KernelLog& operator=(const KernelLog&) = delete;

  /// Why no kernels are logged; empty if they are, and on the host.
  const std::string& missing() const { return missing_; }
  /// The kernels that have run, ordered by their begin. Ends the log.
  std::vector<KernelRun> take();
  /// The number that KernelRun::stream has for kernels of `stream`.
  std::uint32_t number_of(const Stream& stream) const;

 private:
  std::string missing_;
  bool open_ = false;
};

}  // namespace tessera
