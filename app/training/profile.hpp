#pragma once
#include <memory>
#include <optional>
#include <string>

#include "app/training/late_report.hpp"
#include "core/comm/control.hpp"
#include "core/device/kernel_log.hpp"
#include "core/device/timeline.hpp"

namespace tessera {

/// Steps 5 to 8 of a start (of fewer than 8, the last four), in which a device's time is measured for the closing table
/// and, with debug.profile, everything is kept: a Chrome trace, a process a rank, of the ranks of rank 0's host. On a
/// GPU these steps run kernel by kernel, with the bits of captured ones; on the host nothing is measured but for a
/// profile, since its table is of all steps.
class Profile {
 public:
  Profile(const RunConfig& config, Device& device, Control& control, LateReport& report);
  ~Profile();

  /// Around each step, which `number` counts from 1. Collective.
  void before(std::int64_t number);
  void after(std::int64_t number);
  /// The run ends here. Writes what is there, should a profile be under way. Collective.
  void finish();

 private:
  void begin();
  void end();
  void write(const std::string& mine);

  const std::string& path_;
  std::int64_t steps_;
  Device& device_;
  Control& control_;
  LateReport& report_;
  std::optional<std::int64_t> first_;  ///< step
  bool under_way_ = false;
  std::unique_ptr<KernelLog> kernels_;
};

}  // namespace tessera
