#include "io/metrics/quantization_log.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>

#include "io/files/access.hpp"
#include "io/files/text_file.hpp"

namespace tessera {
namespace {

constexpr int histogram_entries = 32;

/// Finite values by exponent, from that of the largest downwards.
nlohmann::ordered_json histogram_of(const QuantizerSums& sums) {
  const int top = static_cast<int>(sums.amax >> 23);
  std::vector<std::uint64_t> counts(histogram_entries);
  for (int e = top; e >= 0; --e)
    counts[static_cast<std::size_t>(std::min(top - e, histogram_entries - 1))] += sums.exponents[e];
  return {{"top", top - 127}, {"counts", counts}};
}

std::optional<QuantizerFigures> figures_of(const nlohmann::json& row) {
  try {
    QuantizerFigures figures{row.at("step"),
                             row.at("matrix"),
                             row.at("role"),
                             row.at("side"),
                             row.at("format"),
                             0,
                             0,
                             0,
                             row.at("log2").at("top"),
                             row.at("log2").at("counts").get<std::vector<std::uint64_t>>()};
    for (const QuantizerField& field : quantizer_fields) figures.*field.field = row.at(field.key);
    return figures;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

}  // namespace

std::string to_json(std::int64_t step, const QuantizerLine& line) {
  const QuantizerSums& sums = line.sums;
  const nlohmann::ordered_json row{{"step", step},
                                   {"matrix", line.matrix},
                                   {"role", name_of(line.copy.role)},
                                   {"side", name_of(line.copy.side)},
                                   {"format", traits_of(line.copy.format).name},
                                   {"elements", sums.elements},
                                   {"zeros", sums.zeros},
                                   {"nan", sums.nan},
                                   {"inf", sums.infinite},
                                   {"amax", line.amax()},
                                   {"relative_error", line.relative_error()},
                                   {"saturated", line.saturated()},
                                   {"underflow", line.underflow()},
                                   {"log2", histogram_of(sums)}};
  return row.dump();
}

QuantizerFigures figures_of(std::int64_t step, const QuantizerLine& line) {
  return *figures_of(nlohmann::json::parse(to_json(step, line)));
}

std::vector<QuantizerFigures> read_quantization(const std::filesystem::path& path) {
  std::vector<QuantizerFigures> lines;
  if (entry_at(path) == Entry::none) return lines;
  std::istringstream text(read_text_file(path));
  for (std::string line; std::getline(text, line);)
    if (auto figures = figures_of(nlohmann::json::parse(line, nullptr, false))) lines.push_back(std::move(*figures));
  return lines;
}

RoleFigures figures_of_role(const std::vector<QuantizerFigures>& lines, std::int64_t step, std::string_view role,
                            double QuantizerFigures::*field) {
  RoleFigures found;
  std::vector<double> all;
  for (const QuantizerFigures& line : lines) {
    if (line.step != step || line.role != role) continue;
    all.push_back(line.*field);
    if (all.size() > 1 && line.*field <= found.worst) continue;
    found.worst = line.*field;
    found.matrix = line.matrix;
  }
  if (all.empty()) return found;
  std::ranges::sort(all);
  found.median = (all[(all.size() - 1) / 2] + all[all.size() / 2]) / 2;
  return found;
}

std::vector<std::int64_t> steps_of(const std::vector<QuantizerFigures>& lines) {
  std::set<std::int64_t> steps;
  for (const QuantizerFigures& line : lines) steps.insert(line.step);
  return {steps.begin(), steps.end()};
}

Problems QuantizationLog::append(std::int64_t step, const std::vector<QuantizerLine>& lines) {
  std::string text;
  for (const QuantizerLine& line : lines) text += to_json(step, line) + '\n';
  return rows_.append(text, step);
}

}  // namespace tessera
