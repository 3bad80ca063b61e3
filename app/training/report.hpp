#pragma once
#include <string>
#include <vector>

#include "core/comm/control.hpp"
#include "core/plan/plan.hpp"
#include "io/report/svg_plot.hpp"

namespace tessera {

/// The closing tables of a run.
struct ClosingReport {
  /// Time over the ranks, each region without those inside it: on a GPU as the device spent its measured steps, a step
  /// on average; on the host of this start, by its clock.
  std::vector<Bar> regions;
  /// The end of a log: time by region, the share of communication that was exposed, bytes per collective, memory by
  /// category as allocated.
  std::string text;
};
/// What the training loop measured.
struct Loop {
  double seconds = 0;  ///< since training began
  std::int64_t late_allocations = 0;
  std::int64_t snapshot_bytes = 0;  ///< of the host, for saves beside training
};
/// The same on every rank, but for the shares of `loop`, which are this rank's. Collective.
ClosingReport closing_report(Device& device, const Mesh& mesh, const RunPlan& plan, Control& control,
                             const Loop& loop);

}  // namespace tessera
