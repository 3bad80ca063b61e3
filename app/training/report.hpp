#pragma once
#include <string>

#include "core/comm/control.hpp"
#include "core/plan/plan.hpp"

namespace tessera {

/// The end of a log: host time by region (least, mean and most over ranks), bytes per collective, memory by category as
/// allocated, and the share of the time that ranks waited for communication. Empty but on rank 0. Collective.
std::string closing_report(Device& device, const RunPlan& plan, Control& control, double seconds);

}  // namespace tessera
