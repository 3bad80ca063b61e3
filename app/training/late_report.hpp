#pragma once
#include <functional>
#include <optional>

#include "app/training/trace.hpp"
#include "core/comm/control.hpp"
#include "core/config/config.hpp"
#include "core/optim/norm_window.hpp"
#include "core/step/engine.hpp"
#include "io/metrics/metrics_log.hpp"

namespace tessera {

/// Takes a run's rows; returns what went wrong. Rank 0 alone has one.
using RowSink = std::function<Problems(const MetricsRow&)>;

/// When a step's row is read: while the step after it runs, or as soon as it has been begun.
enum class Reading { late, at_once };

/// late on a GPU without a trace, which runs steps by itself; else at_once.
Reading reading_of(Device& device, const Trace* trace);

/// Hands on the metrics row of each step, in order, read as `reading` says. One a rank; calls are Local or Collective.
class LateReport {
 public:
  /// `trace` may be null; it gets each report when that is read.
  LateReport(Device& device, const RunConfig& config, Engine& engine, Control& control, Trace* trace, Reading reading);

  /// Where rows go from now on. Local.
  void send_to(const RowSink& sink) { sink_ = sink; }
  /// Continues from a restored run's counters. Local.
  void resume(const StateCounters& counters);
  /// The largest gradient norm of step `step`, the next to be enqueued, that is no spike. Local.
  float norm_limit(std::int64_t step) const;
  /// Step `step` (from 1) has been enqueued, after which `samples` have been trained on: hands on the row of the step
  /// before. Throws as finish() does. Collective.
  void begun(std::int64_t step, std::int64_t samples, Turn turn);
  /// Adds an evaluation to the row of the last step. The step's report is read first, since `evaluate` goes through the
  /// same memory. Collective as `evaluate` is.
  void evaluated(const std::function<double()>& evaluate);
  /// Something other than a step runs now: the next step is timed from its begin, not from the last one's end. Local.
  void pause() { straight_on_ = false; }
  /// Hands on the last step's row, should that be outstanding. Throws on all ranks what the sink says, and
  /// Error{numerical} after optimizer.max_skips skipped steps in a row. Collective.
  void finish();

  /// Whether rows are read while the next step runs.
  bool behind() const { return reading_ == Reading::late; }
  /// Steps in a row that were not finite, and norms for StateCounters, up to the last report that was read.
  std::int64_t skips() const { return skips_; }
  const std::vector<double>& norms() const { return window_.norms(); }

 private:
  /// Waits for the step.
  void read();

  /// A step that was begun and whose row is still to be handed on.
  struct Unread {
    std::int64_t step, samples;
    Turn turn;
    bool straight_on;               ///< its time begins where that of the step before ends
    std::optional<MetricsRow> row;  ///< once its report has been read
  };

  Device& device_;
  const RunConfig& config_;
  Engine& engine_;
  Control& control_;
  Trace* trace_;
  Reading reading_;
  RowSink sink_;
  std::optional<Unread> unread_;
  Event last_end_;
  bool straight_on_ = false;
  std::int64_t skips_ = 0;
  NormWindow window_;  ///< empty without optimizer.skip_spikes
};

}  // namespace tessera
