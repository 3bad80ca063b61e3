#pragma once
#include <string>
#include <vector>

#include "core/comm/control.hpp"
#include "core/plan/plan.hpp"
#include "io/report/svg_plot.hpp"

namespace tessera {

/// The closing tables of a run.
struct ClosingReport {
  /// Time by region, nested regions not counted, over the ranks: on a GPU, device time of a measured step on average.
  /// On the host, its time of this start.
  std::vector<Bar> regions;
  std::string regions_of;  ///< "of this start", or "a step on the device, of 12 measured"
  /// The last lines of a log: time by region, share of exposed communication, bytes by collective, allocated memory by
  /// category.
  std::string text;
};
/// Measurements of the training loop.
struct Loop {
  double seconds = 0;  ///< since training began
  std::int64_t late_allocations = 0;
  std::int64_t snapshot_bytes = 0;  ///< host memory of the snapshot for asynchronous saves
};
/// Makes the closing tables, the same on every rank, except for shares of `loop`, which are this rank's. Collective
/// over the world.
ClosingReport closing_report(Device& device, const Mesh& mesh, const RunPlan& plan, Control& control,
                             const Loop& loop);

}  // namespace tessera
