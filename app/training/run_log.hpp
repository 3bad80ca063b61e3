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

/// Texts of report.html besides rows and plan.
struct RunTexts {
  std::string corpus, deck;  ///< corpus_text(); the resolved deck
};

/// Rank 0's log of a run. Writes every step to metrics.jsonl and to the TensorBoard file, as many steps to the console
/// as a person can follow, and report.html during the run and at its end. Local.
class RunLog {
 public:
  /// `step`: steps done before, whose rows stay. `peak`: of each rank's device, if known. Throws Error{environment} if
  /// metrics.jsonl cannot be opened.
  RunLog(const RunPlan& plan, std::int64_t step, std::optional<Peak> peak, RunTexts texts);

  std::int64_t restarts() const { return metrics_.restarts(); }  ///< number of times that the run has been resumed

  [[nodiscard]] Problems row(const MetricsRow& row);
  /// The row of the step done last, now with the result of the evaluation that a stop had abandoned. Throws
  /// Error{environment}.
  void evaluated(const MetricsRow& row);
  void saved(std::int64_t step) { saves_.push_back(step); }  ///< marks a save in report.html
  double seconds() const;  ///< since the log was opened
  /// Prints the closing tables and writes report.html; `end` says how the run ended. Problems with the page are printed
  /// and do not fail the run.
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
