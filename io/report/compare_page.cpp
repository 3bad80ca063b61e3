#include "io/report/compare_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include "io/metrics/console.hpp"
#include "io/report/html_page.hpp"
#include "io/report/quantization_section.hpp"
#include "io/report/report_page.hpp"
#include "io/report/svg_plot.hpp"

namespace tessera {
namespace {

/// The names of a page's runs stand between these two, for runs_on().
const std::string names_begin = "<div class=\"wide\" data-runs=\"", names_end = "\">";

/// Median of the finite values; empty if there are none.
std::optional<double> median(std::vector<double> values) {
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  if (values.empty()) return std::nullopt;
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

template <class F>
std::vector<double> column(const std::vector<MetricsRow>& rows, const F& value) {
  std::vector<double> values;
  for (const MetricsRow& row : rows) values.push_back(value(row));
  return values;
}

std::optional<double> mean_of_last(const std::vector<MetricsRow>& rows) {
  const std::size_t wanted = std::max<std::size_t>(10, rows.size() / 20);
  const std::size_t first = rows.size() - std::min(rows.size(), wanted);
  double sum = 0, count = 0;
  for (std::size_t i = first; i < rows.size(); ++i)
    if (std::isfinite(rows[i].loss)) {
      sum += rows[i].loss;
      ++count;
    }
  return count > 0 ? std::optional(sum / count) : std::nullopt;
}

std::string setting(const ComparedRun& run, const std::string& key) {
  const auto found = run.settings.find(key);
  return found == run.settings.end() ? "-" : found->second;
}

/// A setting's value, shortened if it is long (such as a list of files).
std::string shown_setting(const std::string& value) {
  constexpr std::size_t longest = 32;
  return value.size() <= longest ? value : value.substr(0, longest - 3) + "...";
}

std::string shown(const std::optional<double>& value, int digits) {
  return value ? fmt::format("{:.{}f}", *value, digits) : "-";
}

/// The names of all runs' evaluation sets, each once.
std::vector<std::string> set_names(const std::vector<ComparedRun>& runs) {
  std::vector<std::string> names;
  for (const ComparedRun& run : runs)
    for (const SetOutcome& set : outcome_of(run.rows).sets)
      if (std::ranges::find(names, set.name) == names.end()) names.push_back(set.name);
  return names;
}

/// The cells of a run's evaluation sets, by name: last and lowest loss, with its step.
std::vector<std::string> set_cells(const Outcome& outcome, const std::vector<std::string>& names) {
  std::vector<std::string> cells;
  for (const std::string& name : names) {
    const auto set = std::ranges::find(outcome.sets, name, &SetOutcome::name);
    const bool there = set != outcome.sets.end();
    cells.push_back(there ? fmt::format("{:.4f}", set->loss) : "-");
    cells.push_back(there && set->best ? fmt::format("{:.4f} at {}", *set->best, set->best_step) : "-");
  }
  return cells;
}

Table table_of(const std::vector<ComparedRun>& runs) {
  const std::vector<std::string> keys = differing_settings(runs);
  Table table{{"run"}};
  const auto add = [](std::vector<std::string>& row, const std::vector<std::string>& cells) {
    row.insert(row.end(), cells.begin(), cells.end());
  };
  add(table.front(), keys);
  const std::vector<std::string> sets = set_names(runs);
  add(table.front(), {"steps", "loss (last 5%)", "eval loss", "best eval"});
  for (const std::string& name : sets) add(table.front(), {"eval " + name, "best " + name});
  add(table.front(), {"tokens", "tok/s", "MFU", "expert load", "time", "skipped"});
  for (const ComparedRun& run : runs) {
    const Outcome outcome = outcome_of(run.rows);
    std::vector<std::string>& row = table.emplace_back();
    row = {run.name};
    for (const std::string& key : keys) row.push_back(shown_setting(setting(run, key)));
    const std::string best = outcome.best ? fmt::format("{:.4f} at {}", *outcome.best, outcome.best_step) : "-";
    add(row, {fmt::format("{}", outcome.step), shown(outcome.loss, 4), shown(outcome.eval_loss, 4), best});
    add(row, set_cells(outcome, sets));
    add(row, {count_text(static_cast<double>(outcome.tokens)), count_text(outcome.tokens_per_s),
              outcome.mfu ? fmt::format("{:.1f}%", 100 * *outcome.mfu) : "-", shown(outcome.expert_load, 2),
              time_text(outcome.seconds), fmt::format("{}", outcome.skipped)});
  }
  return table;
}

std::optional<Span> span_of(const std::vector<ComparedRun>& runs) {
  std::vector<const std::vector<MetricsRow>*> rows;
  for (const ComparedRun& run : runs) rows.push_back(&run.rows);
  return tessera::span_of(rows);
}

std::string plot(const std::vector<ComparedRun>& runs, const char* title, const char* unit, Scale scale,
                 const std::function<std::optional<double>(const MetricsRow&)>& value) {
  std::vector<Series> lines;
  for (const ComparedRun& run : runs) lines.push_back(series_of(run.rows, run.name, value));
  return line_plot(title, unit, lines, scale, {}, span_of(runs));
}

/// A value less the first run's at the same step: what it shows of runs that agree, curves over each other cannot.
std::string difference_plot(const std::vector<ComparedRun>& runs, const char* title,
                            const std::function<std::optional<double>(const MetricsRow&)>& value) {
  if (runs.size() < 2) return "";
  std::map<std::int64_t, double> first;
  for (const MetricsRow& row : runs.front().rows)
    if (const auto y = value(row)) first[row.step] = *y;
  return plot(runs, title, "nats a token", Scale::linear, [&](const MetricsRow& row) -> std::optional<double> {
    const auto there = first.find(row.step);
    const auto y = value(row);
    return y && there != first.end() ? std::optional(*y - there->second) : std::nullopt;
  });
}

/// Statistics of the quantizers of each run and role in their last common step: medians over the matrices, and the
/// worst one. Empty without such a step.
Table quantizers_of(const std::vector<ComparedRun>& runs) {
  const auto step = common_step(runs);
  if (!step) return {};
  Table table{{"run", "role"}};
  for (const QuantizerField& field : quantizer_fields)
    for (const char* head : {field.text, "worst", "of"}) table.front().push_back(head);
  for (const ComparedRun& run : runs)
    for (const char* role : quantizer_roles) {
      std::vector<std::string> row{run.name, role};
      for (const QuantizerField& field : quantizer_fields) {
        const RoleFigures of = figures_of_role(run.quantization, *step, role, field.field);
        for (const std::string& cell : {fmt::format("{:.3g}", of.median), fmt::format("{:.3g}", of.worst), of.matrix})
          row.push_back(cell);
      }
      if (!row.back().empty()) table.push_back(row);  // else the run quantizes no value of the role
    }
  return table;
}

std::string quantizers_head(const std::vector<ComparedRun>& runs) {
  return fmt::format("quantizers in step {}: median over matrices, and the worst", *common_step(runs));
}

enum class Colours { none, a_run_a_row };

/// The table's rows in HTML; with colours each row's name has that of its run's curve before it.
std::string rows_of(const Table& table, Colours colours) {
  std::string page;
  for (std::size_t r = 0; r < table.size(); ++r) {
    page += "<tr>";
    for (std::size_t c = 0; c < table[r].size(); ++c) {
      const char* const cell = r == 0 || c == 0 ? "th" : "td";
      const bool coloured = colours == Colours::a_run_a_row && r > 0 && c == 0;
      const std::string swatch = coloured ? fmt::format("<span class=\"c{}\">&#9644;</span> ", r - 1) : "";
      page += fmt::format("<{0}>{1}{2}</{0}>", cell, swatch, escaped(table[r][c]));
    }
    page += "</tr>\n";
  }
  return page;
}

/// Names of the runs, without those slashes at their ends that a shell completes.
std::string names_of(const std::vector<ComparedRun>& runs) {
  std::set<std::string> names;
  for (const ComparedRun& run : runs) {
    const std::filesystem::path path = std::filesystem::path(run.name).lexically_normal();
    names.insert((path.has_filename() ? path : path.parent_path()).string());
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

std::optional<std::int64_t> common_step(const std::vector<ComparedRun>& runs) {
  std::vector<const std::vector<QuantizerFigures>*> lines;
  for (const ComparedRun& run : runs) lines.push_back(&run.quantization);
  return last_common_step(lines);
}

std::string page_of_runs(const std::vector<ComparedRun>& runs) {
  return names_begin + escaped(names_of(runs)) + names_end;
}

std::string coloured_rows(const Table& table) { return rows_of(table, Colours::a_run_a_row); }

std::string runs_on(const std::string& page) {
  const auto begin = page.find(names_begin);
  if (begin == std::string::npos) return "";
  const auto first = begin + names_begin.size();
  return page.substr(first, page.find(names_end, first) - first);
}

namespace {

void add_set(std::vector<SetOutcome>& sets, const EvaluatedSet& evaluated, std::int64_t step) {
  auto set = std::ranges::find(sets, evaluated.name, &SetOutcome::name);
  if (set == sets.end()) set = sets.insert(sets.end(), SetOutcome{evaluated.name, 0, {}, {}, 0});
  set->loss = evaluated.loss;
  set->bits_a_byte = evaluated.bits_a_byte;
  if (!std::isfinite(evaluated.loss) || (set->best && evaluated.loss >= *set->best)) return;
  set->best = evaluated.loss;
  set->best_step = step;
}

}  // namespace

Outcome outcome_of(const std::vector<MetricsRow>& rows) {
  Outcome outcome;
  for (const MetricsRow& row : rows) {
    outcome.skipped += row.skipped;
    if (std::isfinite(row.step_ms)) outcome.seconds += row.step_ms / 1e3;
    for (const EvaluatedSet& set : row.eval_sets) add_set(outcome.sets, set, row.step);
    if (!row.eval_loss) continue;
    outcome.eval_loss = *row.eval_loss;
    if (!std::isfinite(*row.eval_loss) || (outcome.best && *row.eval_loss >= *outcome.best)) continue;
    outcome.best = *row.eval_loss;
    outcome.best_step = row.step;
  }
  if (rows.empty()) return outcome;
  outcome.step = rows.back().step;
  outcome.tokens = rows.back().tokens;
  outcome.loss = mean_of_last(rows);
  outcome.tokens_per_s = median(column(rows, [](const MetricsRow& row) { return row.tokens_per_s; })).value_or(0);
  outcome.mfu = median(column(rows, [](const MetricsRow& row) { return row.mfu.value_or(std::nan("")); }));
  outcome.expert_load = median(column(rows, [](const MetricsRow& row) { return row.expert_load; }));
  return outcome;
}

std::vector<std::string> differing_settings(const std::vector<ComparedRun>& runs) {
  std::set<std::string> keys;
  for (const ComparedRun& run : runs)
    for (const auto& [key, value] : run.settings) keys.insert(key);
  std::vector<std::string> differing;
  for (const std::string& key : keys) {
    if (key == "run.name" || key == "checkpoint.dir" || key == "run.log_every") continue;
    const auto other = [&](const ComparedRun& run) { return setting(run, key) != setting(runs.front(), key); };
    if (std::ranges::any_of(runs, other)) differing.push_back(key);
  }
  return differing;
}

std::string comparison_text(const std::vector<ComparedRun>& runs) {
  const Table quantizers = quantizers_of(runs);
  return aligned(table_of(runs)) + (quantizers.empty() ? "" : quantizers_head(runs) + "\n" + aligned(quantizers));
}

std::string comparison_page(const std::vector<ComparedRun>& runs) {
  // Each curve is thinner than those under it, so that where runs agree all of them are seen.
  std::string colours;
  for (std::size_t i = 0; i < runs.size(); ++i)
    colours += fmt::format(
        ".s{0} {{ stroke: hsl({1} 65% 48%); stroke-width: {2:.1f}; }} .c{0} {{ color: hsl({1} 65% 48%); }}\n", i,
        360 * i / runs.size(), 1.5 + 3.0 * static_cast<double>(runs.size() - 1 - i) / static_cast<double>(runs.size()));
  std::string page = html_head(counted(std::ssize(runs), "run"), colours);
  page += page_of_runs(runs) + "<table>\n";
  page += coloured_rows(table_of(runs));
  page += "</table></div>\n";
  if (const Table quantizers = quantizers_of(runs); !quantizers.empty())
    page += fmt::format("<p>{}</p>\n<div class=\"wide\"><table>\n{}</table></div>\n", quantizers_head(runs),
                        rows_of(quantizers, Colours::none));
  page += "<div class=\"plots\">\n";
  const auto loss = [](const MetricsRow& row) -> std::optional<double> { return row.loss; };
  const auto evaluation = [](const MetricsRow& row) -> std::optional<double> { return row.eval_loss; };
  page += plot(runs, "Loss", "nats a token", Scale::linear, loss);
  page += difference_plot(runs, "Loss less the first run's", loss);
  page += plot(runs, "Evaluation loss", "nats a token", Scale::linear, evaluation);
  page += difference_plot(runs, "Evaluation loss less the first run's", evaluation);
  for (const std::string& name : set_names(runs))
    page += plot(runs, ("Evaluation loss of " + name).c_str(), "nats a token", Scale::linear,
                 [&](const MetricsRow& row) { return loss_of(row, name); });
  page += plot(runs, "Throughput", "tokens/s", Scale::linear, [](const MetricsRow& row) { return row.tokens_per_s; });
  page +=
      plot(runs, "Gradient norm", "before clipping", Scale::log, [](const MetricsRow& row) { return row.grad_norm; });
  page += plot(runs, "Learning rate", "", Scale::linear, [](const MetricsRow& row) { return row.lr; });
  return page + "</div>\n</html>\n";
}

}  // namespace tessera
