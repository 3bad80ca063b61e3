#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "app/training/loop/choices.hpp"
#include "app/training/tell/step_row.hpp"
#include "app/training/tell/trace.hpp"
#include "core/comm/control.hpp"
#include "core/config/config.hpp"
#include "core/optim/norm_window.hpp"
#include "core/step/engine.hpp"
#include "io/metrics/metrics_log.hpp"

namespace tessera {

/// Takes a run's rows on every rank; returns problems.
using RowSink = std::function<Problems(const MetricsRow&)>;

/// When the host waits for a step's report: late, while the next step runs, or at once, when the step has been
/// enqueued.
enum class Reading { late, at_once };

/// late on a GPU, which runs enqueued steps by itself; at_once on the host and with a trace.
Reading reading_of(Device& device, const Trace* trace);

/// Passes the metrics row of each step to the sink, in order, and reads it when `reading` says. One a rank.
class LateReport {
 public:
  /// `trace` (may be null) gets each report when it is read. Local.
  LateReport(Device& device, const RunConfig& config, Engine& engine, Control& control, Trace* trace, Reading reading);

  /// Sets the sink of rows from now on. Local.
  void send_to(const RowSink& sink) { sink_ = sink; }
  /// Writes each step's choices of experts from now on, when its report is read. Local.
  void record_choices(std::unique_ptr<RecordedChoices> record) { choices_ = std::move(record); }
  /// Continues from a restored run's counters. Local.
  void resume(const StateCounters& counters);
  /// The gradient norm above which step `step`, the next to be enqueued, is a spike. Local.
  float norm_limit(std::int64_t step) const;
  /// To be called when a step has been enqueued, with the progress at its end: passes on the row of the step before.
  /// Throws like finish(). Collective over the world.
  void begun(const Progress& progress, Turn turn);
  /// Calls `evaluate` and adds its losses by set, if it gives any, to the row of the last step; returns whether it has.
  /// It may leave choices in `probed`, which the row gets too. Reads that step's report first, since an evaluation uses
  /// the same memory. Collective over the world, like `evaluate`.
  bool evaluated(const std::function<std::optional<std::vector<double>>()>& evaluate,
                 const std::vector<std::int32_t>& probed = {});
  /// To be called when something other than a step runs. The next step is timed from its own begin instead of from the
  /// end of the step before. Local.
  void pause() { back_to_back_ = false; }
  /// Passes on the last step's row, if that is outstanding. Throws problems of sink and records, on all ranks, and
  /// Error{numerical} after optimizer.max_skips steps in a row whose gradients were not finite. Collective over the
  /// world.
  void finish();

  /// Whether rows are read while the next step runs. Local.
  bool behind() const { return reading_ == Reading::late; }
  /// Sets what a restart resumes with: skips in a row, norms and chain up to the last report read. Local.
  void record(StateCounters& counters) const;

 private:
  /// Waits for the unread step and makes its row.
  void read();

  /// A step that has been enqueued and whose row has not been passed on.
  struct Unread {
    Progress progress;
    Turn turn;
    bool back_to_back;              ///< timed from the end of the step before, which it follows directly
    std::optional<MetricsRow> row;  ///< once its report has been read
    Problems problems = {};         ///< with records made of that report
  };

  Device& device_;
  const RunConfig& config_;
  Engine& engine_;
  Control& control_;
  Trace* trace_;
  Reading reading_;
  RowSink sink_;
  std::unique_ptr<RecordedChoices> choices_;  ///< null without routing.record
  std::optional<Unread> unread_;
  Event last_end_;
  bool back_to_back_ = false;
  std::int64_t skips_ = 0;
  std::uint64_t chain_ = 0;
  NormWindow window_;  ///< empty without optimizer.skip_spikes
};

}  // namespace tessera
