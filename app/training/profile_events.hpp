#pragma once
#include <string>
#include <vector>

#include "core/device/device.hpp"
#include "core/device/kernel_log.hpp"

namespace tessera {

/// What one rank gives to a profile, as events of the Chrome trace format, each behind a comma: process `rank`, a row
/// for the host, one a stream of a GPU for regions and one for kernels, and one for each collective that the host
/// carries at once. Times count from `origin`, in nanoseconds of the host's steady clock. Pure.
/// Source: Trace Event Format, Google 2016.
std::string profile_events(int rank, std::int64_t origin, Device& device, const KernelLog& log,
                           const std::vector<KernelRun>& kernels);

}  // namespace tessera
