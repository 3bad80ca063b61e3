#include "io/report/quantization_section.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace tessera {
namespace {

/// Share of a role's values in each binade of a step, from the largest exponent downwards, over all its matrices.
std::string histogram_of(const std::vector<QuantizerFigures>& lines, std::int64_t step, std::string_view role) {
  std::map<std::int64_t, std::uint64_t, std::greater<>> counts;
  std::uint64_t all = 0;
  for (const QuantizerFigures& line : lines)
    if (line.step == step && line.role == role)
      for (std::size_t i = 0; i < line.counts.size(); ++i) {
        if (line.counts[i] == 0) continue;
        counts[line.top - static_cast<std::int64_t>(i)] += line.counts[i];
        all += line.counts[i];
      }
  std::string text;
  for (const auto& [exponent, count] : counts) {
    const double percent = 100 * static_cast<double>(count) / static_cast<double>(all);
    if (percent < 0.05) continue;
    text += fmt::format("2^{:<4} {:5.1f}%  {}\n", exponent, percent,
                        std::string(static_cast<std::size_t>(percent + 0.5), '='));
  }
  return text;
}

}  // namespace

std::string quantization_plots(const std::vector<QuantizerFigures>& lines, const std::optional<Span>& span) {
  std::string plots;
  for (const QuantizerField& field : quantizer_fields)
    for (const char* role : quantizer_roles) {
      Series median{"median", {}, {}, {}, {}}, worst{"worst", {}, {}, {}, {}};
      for (const std::int64_t step : steps_of(lines)) {
        const RoleFigures figures = figures_of_role(lines, step, role, field.field);
        if (figures.matrix.empty()) continue;
        for (Series* const series : {&median, &worst}) series->steps.push_back(static_cast<double>(step));
        median.values.push_back(figures.median);
        worst.values.push_back(figures.worst);
      }
      plots += line_plot(fmt::format("{}: {}", role, field.text), "", {median, worst}, Scale::linear, {}, span);
    }
  return plots;
}

std::string quantization_table(const std::vector<QuantizerFigures>& lines) {
  if (lines.empty()) return "";
  const std::int64_t step = steps_of(lines).back();
  std::string table =
      fmt::format("<h2>Quantizers in step {}</h2>\n<div class=\"wide\"><table>\n<tr><th>role</th>", step);
  for (const QuantizerField& field : quantizer_fields)
    table += fmt::format("<th>{0}</th><th>worst</th><th>of</th>", field.text);
  table += "</tr>\n";
  std::string histograms;
  for (const char* role : quantizer_roles) {
    std::string row;
    for (const QuantizerField& field : quantizer_fields) {
      const RoleFigures figures = figures_of_role(lines, step, role, field.field);
      if (figures.matrix.empty()) continue;
      row += fmt::format("<td>{:.3g}</td><td>{:.3g}</td><td>{}</td>", figures.median, figures.worst,
                         escaped(figures.matrix));
    }
    if (row.empty()) continue;
    table += fmt::format("<tr><th>{}</th>{}</tr>\n", role, row);
    histograms += fmt::format("<details><summary>{}: values by magnitude</summary><pre>{}</pre></details>\n", role,
                              histogram_of(lines, step, role));
  }
  return table + "</table></div>\n" + histograms;
}

std::optional<std::int64_t> last_common_step(const std::vector<const std::vector<QuantizerFigures>*>& runs) {
  std::map<std::int64_t, std::size_t> have;
  for (const auto* lines : runs)
    for (const std::int64_t step : steps_of(*lines)) ++have[step];
  std::optional<std::int64_t> last;
  for (const auto& [step, count] : have)
    if (count == runs.size()) last = step;
  return last;
}

}  // namespace tessera
