#include "io/report/report_page.hpp"

#include <fmt/format.h>

#include "io/report/html_page.hpp"

namespace tessera {

Series series_of(const std::vector<MetricsRow>& rows, const std::string& name,
                 const std::function<std::optional<double>(const MetricsRow&)>& value) {
  Series series{name, {}, {}};
  for (const MetricsRow& row : rows)
    if (const auto y = value(row)) {
      series.steps.push_back(static_cast<double>(row.step));
      series.values.push_back(*y);
    }
  return series;
}

namespace {

Marks marks_of(const RunReport& report) {
  Marks marks;
  for (std::size_t i = 1; i < report.rows.size(); ++i)
    if (report.rows[i].restart != report.rows[i - 1].restart)
      marks.restarts.push_back(static_cast<double>(report.rows[i - 1].step));
  for (const std::int64_t step : report.saves) marks.saves.push_back(static_cast<double>(step));
  return marks;
}

/// Legend of the marks that all plots show.
std::string key_of(const Marks& marks) {
  std::string text;
  if (!marks.saves.empty()) text += "short lines at the foot: saves";
  if (!marks.restarts.empty()) text += std::string(text.empty() ? "" : "; ") + "dashed lines: restarts";
  return text.empty() ? "" : fmt::format("<p class=\"key\">{}</p>\n", text);
}

std::string plots(const RunReport& report) {
  const std::vector<MetricsRow>& rows = report.rows;
  const Marks marks = marks_of(report);
  std::vector<Series> losses{series_of(rows, "training", [](const MetricsRow& row) { return row.loss; })};
  Series evaluation =
      series_of(rows, "evaluation", [](const MetricsRow& row) -> std::optional<double> { return row.eval_loss; });
  if (!evaluation.values.empty()) losses.push_back(std::move(evaluation));
  const auto plot = [&](const char* title, const char* unit, Scale scale, const auto& value) {
    return line_plot(title, unit, {series_of(rows, title, value)}, scale, marks);
  };
  return line_plot("Loss", "nats a token", losses, Scale::linear, marks) +
         plot("Gradient norm", "before clipping", Scale::log, [](const MetricsRow& row) { return row.grad_norm; }) +
         plot("Throughput", "tokens/s", Scale::linear, [](const MetricsRow& row) { return row.tokens_per_s; }) +
         plot("Expert load", "busiest expert over an even share", Scale::linear,
              [](const MetricsRow& row) { return row.expert_load; }) +
         plot("Learning rate", "", Scale::linear, [](const MetricsRow& row) { return row.lr; });
}

}  // namespace

std::string to_html(const RunReport& report) {
  std::string page = html_head(report.name) + "<dl>\n";
  for (const auto& [what, value] : report.facts)
    page += fmt::format("<dt>{}</dt><dd>{}</dd>\n", escaped(what), escaped(value));
  page += "</dl>\n" + key_of(marks_of(report)) + "<div class=\"plots\">\n" + plots(report);
  page += bar_plot("Time by region", report.regions) + "</div>\n";
  if (!report.deck.empty())
    page += fmt::format("<details><summary>Deck</summary><pre>{}</pre></details>\n", escaped(report.deck));
  return page + "</html>\n";
}

}  // namespace tessera
