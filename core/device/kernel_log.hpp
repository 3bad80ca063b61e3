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

/// While it lives, the GPU's kernels are logged by CUPTI, a library of the CUDA toolkit, which is loaded for it. On the
/// host there are none. One a process at a time; the device must be idle at its begin and at take(). Local.
class KernelLog {
 public:
  KernelLog();
  ~KernelLog();
  KernelLog(const KernelLog&) = delete;
  KernelLog& operator=(const KernelLog&) = delete;

  /// Why no kernel is logged; empty where kernels are, and on the host.
  const std::string& missing() const { return missing_; }
  /// What has run, in the order of begins. Ends the log.
  std::vector<KernelRun> take();
  /// The stream's number among those of kernels.
  std::uint32_t number_of(const Stream& stream) const;

 private:
  std::string missing_;
  bool open_ = false;
};

}  // namespace tessera
