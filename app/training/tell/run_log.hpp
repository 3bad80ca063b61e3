#pragma once
#include <chrono>
#include <optional>

#include "app/training/tell/report.hpp"
#include "app/training/tell/utilisation.hpp"
#include "core/plan/plan.hpp"
#include "io/metrics/console.hpp"
#include "io/metrics/event_file.hpp"
#include "io/metrics/metrics_log.hpp"
#include "io/metrics/quantization_log.hpp"
#include "io/metrics/routing_log.hpp"
#include "io/metrics/routing_probe.hpp"
#include "io/metrics/run_record.hpp"

namespace tessera {

/// An evaluation set of a name: what an evaluation takes of it.
struct LoggedSet {
  std::string name, extent;  ///< extent: its windows, tokens and files, as text
  std::int64_t tokens = 0, bytes = 0;  ///< that are predicted, and the text that they stand for; 0: unknown
};

/// Texts of report.html besides rows and plan.
struct RunTexts {
  std::string corpus, deck, host;  ///< corpus_text(); the resolved deck; rank 0's host
  std::vector<std::string> mixed;  ///< in what the hosts differ, a line each, for the closing tables
  std::vector<LoggedSet> sets = {};
};

/// Rank 0's log of a run. Writes every step to metrics.jsonl and to the TensorBoard file, and what is recorded of its
/// routing and its quantizers to routing.jsonl and quantization.jsonl. Writes as many steps to the console as a person
/// can follow. Writes report.html during the run and at its end. Local.
class RunLog {
 public:
  /// `step`: steps done before, whose rows stay. `peak`: of each rank's device, if known. Throws Error{environment} if
  /// metrics.jsonl cannot be opened.
  RunLog(const RunPlan& plan, std::int64_t step, std::optional<Peak> peak, RunTexts texts);

  std::int64_t restarts() const { return metrics_.restarts(); }  ///< number of times that the run has been resumed
  std::int64_t reached() const { return metrics_.reached(); }    ///< the newest step of the starts before, or 0

  [[nodiscard]] Problems row(const MetricsRow& row);
  /// The statistics of quantizers in a step.
  [[nodiscard]] Problems quantized(std::int64_t step, const std::vector<QuantizerLine>& lines);
  /// The row of the step done last, now with the result of the evaluation that a stop had abandoned. Throws
  /// Error{environment}.
  void evaluated(const MetricsRow& row);
  void saved(std::int64_t step);  ///< marks a save in run.json and report.html
  double seconds() const;  ///< since the log was opened
  /// Prints the closing tables and writes report.html; `end` says how the run ended. Problems with the page are printed
  /// and do not fail the run.
  void close(const ClosingReport& closing, const std::string& end);

 private:
  using Clock = std::chrono::steady_clock;
  /// Compares an evaluation's choices with those of the evaluation before, in routing.jsonl.
  [[nodiscard]] Problems log_kept(const MetricsRow& row);
  void add_bits(MetricsRow& row) const;
  bool worth_a_line(const MetricsRow& row) const;
  void show(const MetricsRow& row);
  /// Writes report.html; problems are printed and do not fail the run. `end`: how the run stands.
  void write_page(const ClosingReport& closing, const std::string& end);
  /// Writes this start's progress to run.json; likewise.
  void write_progress();
  std::string standing() const;  ///< of a run that goes on, with the time after which the page is stale
  std::filesystem::path page_path() const;

  const RunPlan& plan_;
  std::int64_t begun_at_;
  std::optional<Peak> peak_;
  RunTexts texts_;
  StartProgress progress_;
  struct {
    double ms = 0, tokens = 0;
    std::int64_t steps = 0;
  } unshown_;  ///< sums since the console's last line
  MetricsLog metrics_;
  std::optional<RoutingLog> routing_;            ///< where routing is recorded
  std::optional<RoutingProbe> probe_;            ///< likewise
  std::optional<QuantizationLog> quantization_;  ///< with precision.statistics_every
  EventFile events_;
  Console console_{stdout};
  Clock::time_point begin_ = Clock::now();
  Clock::time_point printed_, drawn_, page_due_, last_row_ = begin_;
  Clock::duration longest_wait_{0};  ///< between two rows
  Clock::duration page_gap_ = std::chrono::seconds(30);  ///< least time between two pages
  std::int64_t memory_ = 0;
};

}  // namespace tessera
