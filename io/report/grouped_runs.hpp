#pragma once
#include <optional>
#include <string>
#include <vector>

#include "io/report/compare_page.hpp"

namespace tessera {

/// A mean over runs with its standard error, which one run does not have.
struct Estimate {
  double mean = 0;
  std::optional<double> error;
  std::size_t runs = 0;
};

/// Runs that differ in one key alone, such as run.seed, and in what follows from it.
struct RunGroup {
  std::vector<std::string> settings;             ///< its values of GroupedRuns::keys
  std::vector<const ComparedRun*> runs;          ///< in the order of the key's values
  std::optional<Estimate> loss, eval_loss;       ///< final ones; empty unless every run has one
  std::optional<Estimate> loss_less, eval_less;  ///< differences to the base's runs of equal key, pair by pair
};

/// Runs grouped by all differing settings but one key. The first run's group comes first, and is the base to which
/// others are compared.
struct GroupedRuns {
  std::string by;
  std::vector<std::string> keys;  ///< the settings in which groups differ
  std::vector<RunGroup> groups;
};

/// Throws Error{usage} if no deck has the key `by`, if a run lacks it, or if two runs of a group have the same value.
/// `runs` must outlive the result. Pure.
GroupedRuns grouped(const std::vector<ComparedRun>& runs, const std::string& by);

/// A table for a terminal: differing settings first, then number of runs, mean, standard error and differences to the
/// base.
std::string grouped_text(const GroupedRuns& runs);
/// An HTML page with that table, and losses with a band of one standard error on each side of the mean.
std::string grouped_page(const GroupedRuns& runs, const std::vector<ComparedRun>& all);

}  // namespace tessera
