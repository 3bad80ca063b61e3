#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "io/metrics/metrics_log.hpp"
#include "io/metrics/quantization_log.hpp"
#include "io/report/text_table.hpp"

namespace tessera {

/// One run among others.
struct ComparedRun {
  std::string name;  ///< its directory, as given by the user
  std::vector<MetricsRow> rows;
  std::map<std::string, std::string> settings;  ///< every key of its deck
  std::vector<QuantizerFigures> quantization = {};  ///< statistics of quantizers
};

/// Final figures of an evaluation set that has a name: its last and its lowest loss.
struct SetOutcome {
  std::string name;
  float loss = 0;
  std::optional<double> bits_a_byte, best;
  std::int64_t best_step = 0;
};

/// Final figures of a run.
struct Outcome {
  std::int64_t step = 0, tokens = 0, skipped = 0;
  std::optional<double> loss;              ///< mean over the last twentieth of the steps, at least ten
  std::optional<double> eval_loss, best;   ///< last and lowest evaluation loss
  std::int64_t best_step = 0;              ///< the first step of the lowest
  std::vector<SetOutcome> sets;            ///< in the order of the rows
  double tokens_per_s = 0;                 ///< median over the steps
  std::optional<double> mfu, expert_load;  ///< medians over the steps
  double seconds = 0;                      ///< sum of the steps' times
};
Outcome outcome_of(const std::vector<MetricsRow>& rows);

/// The last step of which all runs have statistics of quantizers; empty: none.
std::optional<std::int64_t> common_step(const std::vector<ComparedRun>& runs);

/// The keys whose values differ between runs, without names of runs and directories and how often they log. A run that
/// lacks a key (its section is absent) differs from those that have it.
std::vector<std::string> differing_settings(const std::vector<ComparedRun>& runs);

/// Comparison of runs side by side, what differs first. A text for a terminal, and a self-contained HTML page. That
/// shows losses, their differences to the first run's, and throughput over the steps, each run in its own colour. Pure.
std::string comparison_text(const std::vector<ComparedRun>& runs);
std::string comparison_page(const std::vector<ComparedRun>& runs);
/// The element that a page of these runs begins with, for runs_on().
std::string page_of_runs(const std::vector<ComparedRun>& runs);
/// The rows of a table as HTML: names first, each run's or group's beside its colour.
std::string coloured_rows(const Table& table);
/// The names of the runs that a page shows, in alphabetical order, as HTML; empty if it is no such page, or an older
/// one.
std::string runs_on(const std::string& page);

}  // namespace tessera
