#pragma once
#include <memory>
#include <optional>
#include <string>

#include "app/training/tell/late_report.hpp"
#include "core/comm/control.hpp"
#include "core/device/kernel_log.hpp"
#include "core/device/timeline.hpp"

namespace tessera {

/// Profiles steps 5 to 8 of a start (of fewer than 8 steps, the last four). Measures a GPU's time for the closing
/// table. With debug.profile writes a Chrome trace with one process for each rank of rank 0's host. On a GPU these
/// steps run kernel by kernel, with the bits of captured ones. On the host only debug.profile measures, since the
/// closing table is of all steps.
class Profile {
 public:
  Profile(const RunConfig& config, Device& device, Control& control, LateReport& report);
  ~Profile();

  /// To be called before and after each step; `number` counts from 1. Collective over the world.
  void before(std::int64_t number);
  void after(std::int64_t number);
  /// To be called at the end of the run: ends a profile that is under way. Collective over the world.
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
  std::optional<std::int64_t> first_;  ///< first step to profile
  bool under_way_ = false;
  std::unique_ptr<KernelLog> kernels_;
};

}  // namespace tessera
