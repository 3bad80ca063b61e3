#include "io/report/report_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "io/metrics/console.hpp"
#include "io/report/html_page.hpp"
#include "io/report/quantization_section.hpp"
#include "io/report/routing_plots.hpp"

namespace tessera {

Series series_of(const std::vector<MetricsRow>& rows, const std::string& name,
                 const std::function<std::optional<double>(const MetricsRow&)>& value) {
  Series series{name, {}, {}, {}, {}};
  for (const MetricsRow& row : rows)
    if (const auto y = value(row)) {
      series.steps.push_back(static_cast<double>(row.step));
      series.values.push_back(*y);
    }
  return series;
}

std::optional<double> loss_of(const MetricsRow& row, const std::string& set) {
  const auto found = std::ranges::find(row.eval_sets, set, &EvaluatedSet::name);
  return found == row.eval_sets.end() ? std::nullopt : std::optional<double>(found->loss);
}

std::optional<Span> span_of(const std::vector<const std::vector<MetricsRow>*>& runs) {
  std::optional<Span> span;
  for (const std::vector<MetricsRow>* rows : runs)
    if (!rows->empty()) {
      const auto first = static_cast<double>(rows->front().step), last = static_cast<double>(rows->back().step);
      span = span ? Span{std::min(span->first, first), std::max(span->last, last)} : Span{first, last};
    }
  return span;
}

namespace {

Marks marks_of(const RunReport& report) {
  Marks marks;
  for (std::size_t i = 1; i < report.rows.size(); ++i)
    if (report.rows[i].restart != report.rows[i - 1].restart)
      marks.restarts.push_back(static_cast<double>(report.rows[i - 1].step));
  const std::set<std::int64_t> kept(report.kept.begin(), report.kept.end());
  std::set<std::int64_t> removed;
  for (const RecordedStart& start : report.starts)
    for (const std::int64_t step : start.progress.saves)
      if (!kept.contains(step)) removed.insert(step);
  marks.saves.assign(kept.begin(), kept.end());
  marks.removed.assign(removed.begin(), removed.end());
  return marks;
}

/// Legend of the marks that all plots show, and of the bars.
std::string key_of(const Marks& marks, const RunReport& report) {
  std::vector<std::string> parts;
  if (!marks.saves.empty()) parts.emplace_back("green lines at the foot: checkpoints");
  if (!marks.removed.empty()) parts.emplace_back("grey ones: saved, and removed or set aside since");
  if (!marks.restarts.empty()) parts.emplace_back("dashed lines: restarts");
  if (!report.regions.empty())
    parts.emplace_back("bars: mean of the ranks, with a line from the least to the greatest");
  return parts.empty() ? "" : fmt::format("<p class=\"key\">{}</p>\n", fmt::join(parts, "; "));
}

/// What the rows and later starts know of a start.
struct Course {
  std::int64_t last_step = 0;
  double seconds = 0;  ///< of its steps that are part of the run
};
Course course_of(const RunReport& report, std::size_t i) {
  const RecordedStart& start = report.starts[i];
  Course course{std::max(start.step, start.progress.last_step), 0};
  for (const MetricsRow& row : report.rows)
    if (row.restart == start.restart) {
      course.last_step = std::max(course.last_step, row.step);
      if (std::isfinite(row.step_ms)) course.seconds += row.step_ms / 1e3;
    }
  if (i + 1 < report.starts.size()) course.last_step = std::max(course.last_step, report.starts[i + 1].reached);
  return course;
}

/// How a start differs from the one before: where it began, and keys that it changed.
std::string began_text(const RunReport& report, std::size_t i) {
  const RecordedStart& start = report.starts[i];
  std::vector<std::string> parts;
  const std::int64_t before = i > 0 ? course_of(report, i - 1).last_step : start.reached;
  if (before > start.step) parts.push_back(fmt::format("back from step {} to {}", before, start.step));
  if (!start.resumed_from.empty() && (i == 0 || before > start.step)) parts.push_back("from " + start.resumed_from);
  for (const RecordedChange& change : start.changes)
    parts.push_back(fmt::format("{}: {} -> {}", change.key, change.before, change.now));
  return fmt::format("{}", fmt::join(parts, "; "));
}

/// Why a start ended. One that has recorded no end still runs if it is the last, as far as this page can know.
std::string end_text(const RunReport& report, std::size_t i) {
  const std::string& end = report.starts[i].progress.end;
  if (!end.empty()) return end;
  return i + 1 == report.starts.size() ? "" : "without a word: killed, or its machine";
}

/// "2026-11-01 12:00:00" of ISO 8601 "2026-11-01T12:00:00Z".
std::string plain_time(std::string time) {
  std::ranges::replace(time, 'T', ' ');
  std::erase(time, 'Z');
  return time;
}

/// The starts of a run, a row each; on a phone, a block each.
std::string starts_table(const RunReport& report) {
  if (report.starts.empty()) return "";
  std::string table = "<h2>Starts</h2>\n<table class=\"starts\">\n";
  for (const char* head : {"start", "steps", "begun (UTC)", "ran on", "ended", "began with"})
    table += fmt::format("{}<th>{}</th>", table.ends_with("\n") ? "<tr>" : "", head);
  table += "</tr>\n";
  for (std::size_t i = 0; i < report.starts.size(); ++i) {
    const RecordedStart& start = report.starts[i];
    const Course course = course_of(report, i);
    const std::string steps =
        course.last_step > start.step ? fmt::format("{} to {}", start.step + 1, course.last_step) : "none";
    const std::string place =
        fmt::format("{} of {} on {}, {}, {}", counted(start.ranks, "rank"), counted(start.threads, "thread"),
                    start.hosts, start.program, start.recipe);
    table += fmt::format(
        "<tr><th>{}</th><td>{}</td><td>{}, {} in steps</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
        start.restart + 1, steps, escaped(plain_time(start.started)), time_text(course.seconds), escaped(place),
        escaped(end_text(report, i)), escaped(began_text(report, i)));
  }
  return table + "</table>\n";
}

/// A plot with a line for each evaluation set that has a name; empty without any.
std::string sets_plot(const std::vector<MetricsRow>& rows, const Marks& marks, const std::optional<Span>& span) {
  std::vector<Series> sets;
  for (const MetricsRow& row : rows)
    for (const EvaluatedSet& set : row.eval_sets)
      if (std::ranges::find(sets, set.name, &Series::name) == sets.end()) sets.push_back({set.name, {}, {}});
  for (Series& set : sets)
    set = series_of(rows, set.name, [&](const MetricsRow& row) { return loss_of(row, set.name); });
  return sets.empty() ? "" : line_plot("Evaluation sets", "nats a token", sets, Scale::linear, marks, span);
}

/// Colours of further lines than the page's style has.
std::string further_colours(const std::vector<MetricsRow>& rows) {
  std::size_t lines = 0;
  for (const MetricsRow& row : rows) lines = std::max(lines, row.eval_sets.size());
  std::string rules;
  for (std::size_t i = 3; i < lines; ++i)
    rules += fmt::format(".s{} {{ stroke: hsl({} 65% 48%); }}\n", i, 360 * i / lines);
  return rules;
}

std::string plots(const RunReport& report) {
  const std::vector<MetricsRow>& rows = report.rows;
  const Marks marks = marks_of(report);
  std::vector<Series> losses{series_of(rows, "training", [](const MetricsRow& row) { return row.loss; })};
  Series evaluation =
      series_of(rows, "evaluation", [](const MetricsRow& row) -> std::optional<double> { return row.eval_loss; });
  if (!evaluation.values.empty()) losses.push_back(std::move(evaluation));
  const std::optional<Span> span = span_of({&rows});
  const auto plot = [&](const char* title, const char* unit, Scale scale, const auto& value) {
    return line_plot(title, unit, {series_of(rows, title, value)}, scale, marks, span);
  };
  return line_plot("Loss", "nats a token", losses, Scale::linear, marks, span) + sets_plot(rows, marks, span) +
         plot("Gradient norm", "before clipping", Scale::log, [](const MetricsRow& row) { return row.grad_norm; }) +
         plot("Throughput", "tokens/s", Scale::linear, [](const MetricsRow& row) { return row.tokens_per_s; }) +
         plot("Expert load", "busiest expert over an even share", Scale::linear,
              [](const MetricsRow& row) { return row.expert_load; }) +
         plot("Balance loss", "mean of layers, without its coefficient", Scale::linear,
              [](const MetricsRow& row) { return row.balance_loss; }) +
         plot("Router z loss", "mean of layers, without its coefficient", Scale::linear,
              [](const MetricsRow& row) { return row.z_loss; }) +
         plot("Learning rate", "", Scale::linear, [](const MetricsRow& row) { return row.lr; }) +
         quantization_plots(report.quantization, span);
}

}  // namespace

std::string to_html(const RunReport& report) {
  const std::string title = report.directory.empty() ? report.name : report.name + ": " + report.directory;
  std::string page = html_head(title, further_colours(report.rows)) + "<dl>\n";
  for (const auto& [what, value] : report.facts)
    page += fmt::format("<dt>{}</dt><dd>{}</dd>\n", escaped(what), escaped(value));
  page += "</dl>\n" + starts_table(report) + key_of(marks_of(report), report) + "<div class=\"plots\">\n";
  const std::string whose = report.starts.empty() ? "" : fmt::format(", start {}", report.starts.back().restart + 1);
  page += plots(report) + routing_plots(report.routing, report.kept_choices, marks_of(report), span_of({&report.rows}));
  page += bar_plot("Time by region" + whose, "s, " + report.regions_of, report.regions) + "</div>\n";
  page += quantization_table(report.quantization);
  if (!report.deck.empty())
    page += fmt::format("<details><summary>Deck</summary><pre>{}</pre></details>\n", escaped(report.deck));
  return page + "</html>\n";
}

}  // namespace tessera
