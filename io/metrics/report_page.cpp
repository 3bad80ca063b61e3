#include "io/metrics/report_page.hpp"

#include <fmt/format.h>

#include <functional>

namespace tessera {
namespace {

// Three colours that stay apart for the colour-blind, on white and on black.
constexpr const char* style = R"(<style>
:root {
  color-scheme: light dark;
  --ink: #1c2024; --soft: #667078; --line: #e3e6e8; --s0: #1f6fb4; --s1: #d4731c; --s2: #1d8a63;
}
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8ea; --soft: #98a1a8; --line: #30363b; --s0: #62aaf0; --s1: #ef9a4d; --s2: #4cc79a; }
}
body { font: 14px/1.5 system-ui, sans-serif; color: var(--ink); max-width: 800px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.4em; }
dl { display: grid; grid-template-columns: max-content auto; gap: 0 1.5em; }
dt { color: var(--soft); }
dd { margin: 0; }
svg { width: 100%; margin: 1em 0; }
.title { font-weight: 600; font-size: 14px; fill: var(--ink); }
.unit, .tick { font-weight: 400; font-size: 12px; fill: var(--soft); }
path { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.grid { stroke: var(--line); stroke-width: 1; }
.bar { fill: var(--s0); }
.range { stroke: var(--ink); stroke-width: 1.5; }
.s0 { stroke: var(--s0); }
.s1 { stroke: var(--s1); }
.s2 { stroke: var(--s2); }
</style>
)";

Series series_of(const std::vector<MetricsRow>& rows, const char* name,
                 const std::function<std::optional<double>(const MetricsRow&)>& value) {
  Series series{name, {}, {}};
  for (const MetricsRow& row : rows)
    if (const auto y = value(row)) {
      series.steps.push_back(static_cast<double>(row.step));
      series.values.push_back(*y);
    }
  return series;
}

std::string plots(const std::vector<MetricsRow>& rows) {
  std::vector<Series> losses{series_of(rows, "training", [](const MetricsRow& row) { return row.loss; })};
  Series evaluation =
      series_of(rows, "evaluation", [](const MetricsRow& row) -> std::optional<double> { return row.eval_loss; });
  if (!evaluation.values.empty()) losses.push_back(std::move(evaluation));
  return line_plot("Loss", "nats a token", losses) +
         line_plot("Gradient norm", "before clipping",
                   {series_of(rows, "norm", [](const MetricsRow& row) { return row.grad_norm; })}, Scale::log) +
         line_plot("Throughput", "tokens/s",
                   {series_of(rows, "tokens/s", [](const MetricsRow& row) { return row.tokens_per_s; })}) +
         line_plot("Learning rate", "", {series_of(rows, "rate", [](const MetricsRow& row) { return row.lr; })});
}

}  // namespace

std::string to_html(const RunReport& report) {
  std::string page = fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width\">\n"
      "<title>{}</title>\n{}<h1>{}</h1>\n<dl>\n",
      escaped(report.name), style, escaped(report.name));
  for (const auto& [what, value] : report.facts)
    page += fmt::format("<dt>{}</dt><dd>{}</dd>\n", escaped(what), escaped(value));
  return page + "</dl>\n" + plots(report.rows) + bar_plot("Time by region", report.regions) + "</html>\n";
}

}  // namespace tessera
