#include "io/report/grouped_runs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "io/metrics/console.hpp"
#include "io/report/html_page.hpp"
#include "io/report/svg_plot.hpp"
#include "io/report/text_table.hpp"
#include "kernels/base/error.hpp"

namespace tessera {
namespace {

using Value = std::function<std::optional<double>(const MetricsRow&)>;

std::string setting(const ComparedRun& run, const std::string& key) {
  const auto found = run.settings.find(key);
  return found == run.settings.end() ? "-" : found->second;
}

/// Whether `key` differs between runs only because it follows from `by`: a seed that no deck gives.
bool follows(const std::vector<ComparedRun>& runs, const std::string& key, const std::string& by) {
  if (key != "data.seed" && key != "precision.seed") return false;
  return std::ranges::all_of(runs, [&](const ComparedRun& run) { return setting(run, key) == setting(run, by); });
}

Estimate estimate_of(const std::vector<double>& values) {
  Estimate estimate{0, std::nullopt, values.size()};
  for (const double value : values) estimate.mean += value / static_cast<double>(values.size());
  if (values.size() < 2) return estimate;
  double squares = 0;
  for (const double value : values) squares += (value - estimate.mean) * (value - estimate.mean);
  const auto n = static_cast<double>(values.size());
  estimate.error = std::sqrt(squares / (n - 1) / n);
  return estimate;
}

/// A final figure of every run; empty if one lacks it.
std::optional<Estimate> over_runs(const std::vector<const ComparedRun*>& runs, std::optional<double> Outcome::*figure) {
  std::vector<double> values;
  for (const ComparedRun* run : runs) {
    const std::optional<double> value = outcome_of(run->rows).*figure;
    if (!value) return std::nullopt;
    values.push_back(*value);
  }
  return estimate_of(values);
}

/// The same of differences to the base's run of equal key; empty without pairs.
std::optional<Estimate> over_pairs(const RunGroup& group, const RunGroup& base, const std::string& by,
                                   std::optional<double> Outcome::*figure) {
  std::vector<double> values;
  for (const ComparedRun* run : group.runs)
    for (const ComparedRun* other : base.runs) {
      if (setting(*run, by) != setting(*other, by)) continue;
      const auto mine = outcome_of(run->rows).*figure, its = outcome_of(other->rows).*figure;
      if (mine && its) values.push_back(*mine - *its);
    }
  return values.empty() ? std::nullopt : std::optional(estimate_of(values));
}

std::string shown(const std::optional<Estimate>& estimate) {
  if (!estimate) return "-";
  return fmt::format("{:.4f}", estimate->mean) + (estimate->error ? fmt::format(" +- {:.4f}", *estimate->error) : "");
}

Table table_of(const GroupedRuns& runs) {
  std::vector<std::vector<std::string>> table{runs.keys};
  for (const char* head : {"runs", "eval loss", "less the base's", "loss (last 5%)", "less the base's"})
    table.front().emplace_back(head);
  for (const RunGroup& group : runs.groups) {
    std::vector<std::string>& row = table.emplace_back(group.settings);
    row.push_back(fmt::format("{}", group.runs.size()));
    for (const auto& estimate : {group.eval_loss, group.eval_less, group.loss, group.loss_less})
      row.push_back(shown(estimate));
  }
  return table;
}

std::string name_of(const GroupedRuns& runs, const RunGroup& group) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < runs.keys.size(); ++i) parts.push_back(group.settings[i]);
  return parts.empty() ? "all" : fmt::format("{}", fmt::join(parts, ", "));
}

/// Mean and band over a group's runs, at the steps at which all of them have a value.
Series series_of(const GroupedRuns& runs, const RunGroup& group, const Value& value) {
  std::map<std::int64_t, std::vector<double>> steps;
  for (const ComparedRun* run : group.runs)
    for (const MetricsRow& row : run->rows)
      if (const auto y = value(row)) steps[row.step].push_back(*y);
  Series series{name_of(runs, group), {}, {}, {}, {}};
  for (const auto& [step, values] : steps) {
    if (values.size() < group.runs.size()) continue;
    const Estimate estimate = estimate_of(values);
    series.steps.push_back(static_cast<double>(step));
    series.values.push_back(estimate.mean);
    series.below.push_back(estimate.mean - estimate.error.value_or(0));
    series.above.push_back(estimate.mean + estimate.error.value_or(0));
  }
  return series;
}

}  // namespace

GroupedRuns grouped(const std::vector<ComparedRun>& runs, const std::string& by) {
  GroupedRuns made{by, {}, {}};
  for (const std::string& key : differing_settings(runs))
    if (key != by && !follows(runs, key, by)) made.keys.push_back(key);
  for (const ComparedRun& run : runs) {
    if (!run.settings.contains(by))
      throw Error(
          Exit::usage,
          fmt::format("--by: the deck of {} has no key {}; name a key as decks write it, as run.seed", run.name, by));
    std::vector<std::string> settings;
    for (const std::string& key : made.keys) settings.push_back(setting(run, key));
    auto group = std::ranges::find(made.groups, settings, &RunGroup::settings);
    if (group == made.groups.end()) group = made.groups.insert(group, {settings, {}, {}, {}, {}, {}});
    for (const ComparedRun* other : group->runs)
      if (setting(*other, by) == setting(run, by))
        throw Error(Exit::usage, fmt::format("--by: {} and {} have the same {}, {}, and no other setting that differs; "
                                             "leave one out",
                                             other->name, run.name, by, setting(run, by)));
    group->runs.push_back(&run);
  }
  for (RunGroup& group : made.groups) {
    group.loss = over_runs(group.runs, &Outcome::loss);
    group.eval_loss = over_runs(group.runs, &Outcome::eval_loss);
    if (&group == &made.groups.front()) continue;
    group.loss_less = over_pairs(group, made.groups.front(), by, &Outcome::loss);
    group.eval_less = over_pairs(group, made.groups.front(), by, &Outcome::eval_loss);
  }
  return made;
}

std::string grouped_text(const GroupedRuns& runs) {
  return aligned(table_of(runs)) +
         fmt::format("means over {} with their standard errors; differences are of pairs of equal {}, to the first "
                     "group\n",
                     runs.by, runs.by);
}

std::string grouped_page(const GroupedRuns& runs, const std::vector<ComparedRun>& all) {
  std::string rules = ".band { opacity: 0.2; stroke: none; }\n";
  for (std::size_t i = 0; i < runs.groups.size(); ++i)
    rules += fmt::format(
        ".s{0} {{ stroke: hsl({1} 65% 48%); }} .b{0} {{ fill: hsl({1} 65% 48%); }} .c{0} {{ color: "
        "hsl({1} 65% 48%); }}\n",
        i, 360 * i / runs.groups.size());
  std::string page =
      html_head(counted(std::ssize(all), "run") + " by " + runs.by, rules) + page_of_runs(all) + "<table>\n";
  page += coloured_rows(table_of(runs));
  page += fmt::format(
      "</table></div>\n<p class=\"key\">means over {0} with their standard errors, as bands in plots; "
      "differences are of pairs of equal {0}, to the first group</p>\n<div class=\"plots\">\n",
      escaped(runs.by));
  const auto plot = [&](const char* title, const Value& value) {
    std::vector<Series> lines;
    for (const RunGroup& group : runs.groups) lines.push_back(series_of(runs, group, value));
    return line_plot(title, "nats a token", lines);
  };
  page += plot("Evaluation loss", [](const MetricsRow& row) -> std::optional<double> { return row.eval_loss; });
  page += plot("Loss", [](const MetricsRow& row) -> std::optional<double> { return row.loss; });
  return page + "</div>\n</html>\n";
}

}  // namespace tessera
