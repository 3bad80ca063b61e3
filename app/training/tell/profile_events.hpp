#pragma once
#include <string>
#include <vector>

#include "core/device/device.hpp"
#include "core/device/kernel_log.hpp"

namespace tessera {

/// One rank's events in the Chrome trace format, each with a comma before it. They belong to process `rank`, which has
/// a row for the host. Each stream of a GPU has a row of regions and a row of kernels. There is a row for each lane of
/// collectives that the host carries. Times count from `origin`, in nanoseconds of the host's steady clock. Local.
/// Source: Trace Event Format, Google 2016.
std::string profile_events(int rank, std::int64_t origin, Device& device, const KernelLog& log,
                           const std::vector<KernelRun>& kernels);

}  // namespace tessera
