#pragma once
#include <string>
#include <vector>

#include "core/comm/control.hpp"
#include "core/plan/plan.hpp"
#include "io/metrics/svg_plot.hpp"

namespace tessera {

/// What is known when a run ends.
struct ClosingReport {
  std::vector<Bar> regions;  ///< host time of this start over the ranks; the last is the time spent waiting
  /// The end of a log: time by region, bytes per collective, memory by category as allocated, and the share of the time
  /// that ranks waited for communication.
  std::string text;
};
/// The same on every rank. `seconds`: since training began. Collective.
ClosingReport closing_report(Device& device, const RunPlan& plan, Control& control, double seconds);

}  // namespace tessera
