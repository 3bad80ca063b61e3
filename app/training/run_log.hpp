#pragma once
#include <chrono>
#include <optional>

#include "app/training/report.hpp"
#include "app/training/utilisation.hpp"
#include "core/plan/plan.hpp"
#include "io/metrics/console.hpp"
#include "io/metrics/event_file.hpp"
#include "io/metrics/metrics_log.hpp"

namespace tessera {

/// What a page says of a run besides its rows and its plan.
struct RunTexts {
  std::string corpus, deck;  ///< a line; the resolved deck
};

/// Rank 0's log of a run: every step to metrics.jsonl and its copy for TensorBoard, and to the console as many as a
/// person can follow; report.html while it runs and at every end.
class RunLog {
 public:
  /// Throws Error{environment} when metrics.jsonl cannot be opened.
  /// `step`: steps done before, whose rows stay; `peak` of each rank's device, if known.
  RunLog(const RunPlan& plan, std::int64_t step, std::optional<Peak> peak, RunTexts texts);

  std::int64_t restarts() const { return metrics_.restarts(); }  ///< how often the run had been resumed

  [[nodiscard]] Problems row(const MetricsRow& row);
  void saved(std::int64_t step) { saves_.push_back(step); }  ///< for the page
  double seconds() const;  ///< since it was opened
  /// Prints the closing tables and writes report.html, which says with `end` how the run ended. Problems with the page
  /// are printed and do not fail the run.
  void close(const ClosingReport& closing, const std::string& end);

 private:
  using Clock = std::chrono::steady_clock;
  bool worth_a_line(const MetricsRow& row) const;
  void show(const MetricsRow& row);
  /// Writes report.html; problems are printed and do not fail the run.
  void write_page(const std::vector<Bar>& regions, const std::string& end);
  std::filesystem::path page_path() const;

  const RunPlan& plan_;
  std::int64_t begun_at_;
  std::optional<Peak> peak_;
  RunTexts texts_;
  std::vector<std::int64_t> saves_;
  MetricsLog metrics_;
  EventFile events_;
  Console console_{stdout};
  Clock::time_point begin_ = Clock::now();
  Clock::time_point printed_, drawn_, page_due_;
  std::int64_t memory_ = 0;
};

}  // namespace tessera
