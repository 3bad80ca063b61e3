#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "io/metrics/metrics_log.hpp"

namespace tessera {

/// One run among others.
struct ComparedRun {
  std::string name;  ///< as the user named its directory
  std::vector<MetricsRow> rows;
  std::map<std::string, std::string> settings;  ///< every key of its deck
};

/// Final figures of a run.
struct Outcome {
  std::int64_t step = 0, tokens = 0, skipped = 0;
  std::optional<double> loss;              ///< mean over the last twentieth of the steps, ten at least
  std::optional<double> eval_loss, best;   ///< the last one, and the least
  double tokens_per_s = 0;                 ///< median over the steps
  std::optional<double> mfu, expert_load;  ///< medians
  double seconds = 0;                      ///< in steps
};
Outcome outcome_of(const std::vector<MetricsRow>& rows);

/// The keys whose values are not the same in all runs, without the names of runs and directories; a run that lacks one
/// (its section is absent) differs from those that have it.
std::vector<std::string> differing_settings(const std::vector<ComparedRun>& runs);

/// The runs side by side, for a terminal; and as one HTML page that needs nothing else, with their losses and
/// throughput over the steps, each run in a colour of its own. Pure.
std::string comparison_text(const std::vector<ComparedRun>& runs);
std::string comparison_page(const std::vector<ComparedRun>& runs);

}  // namespace tessera
