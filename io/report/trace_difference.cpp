#include "io/report/trace_difference.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "io/files/text_file.hpp"
#include "kernels/base/error.hpp"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

/// Rows by step. The last line may be cut short: a run may be under way.
std::map<std::int64_t, Json> rows_of(const std::filesystem::path& path) {
  std::map<std::int64_t, Json> rows;
  const std::string text = read_text_file(path);
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (lines.eof() && text.back() != '\n') break;
    Json row = Json::parse(line, nullptr, false);
    for (const char* key : {"step", "loss", "norm", "logits", "gradients", "masters"})
      if (!row.is_object() || !row.contains(key) || !row["step"].is_number_integer())
        throw Error(Exit::file,
                    fmt::format("{}:{}: is no row of debug.trace: it has no {}", path.string(), number, key));
    const auto step = row["step"].get<std::int64_t>();
    rows[step] = std::move(row);
  }
  if (rows.empty()) throw Error(Exit::file, path.string() + ": holds no row of debug.trace");
  return rows;
}

std::optional<TraceDifference> scalar(const Json& a, const Json& b, const char* key) {
  if (!a.contains(key) || !b.contains(key) || a[key] == b[key]) return std::nullopt;
  return TraceDifference{a["step"], key, "", a[key].dump(), b[key].dump()};
}

/// The first tensor whose digests differ, or that one of them lacks. `stage` names one of the tensors' arrays.
std::optional<TraceDifference> tensors(const Json& a, const Json& b, const char* key, const char* stage) {
  const auto text = [](const Json& row, const std::string& name) {
    const auto found = row.find(name);
    return found == row.end() ? std::string("none") : found->dump();
  };
  const auto difference = [&](const std::string& name) -> std::optional<TraceDifference> {
    if (text(a[key], name) == text(b[key], name)) return std::nullopt;
    return TraceDifference{a["step"], stage, name, text(a[key], name), text(b[key], name)};
  };
  for (const Json* side : {&a, &b})
    for (const auto& [name, digest] : (*side)[key].items())
      if (auto found = difference(name)) return found;
  return std::nullopt;
}

/// The first difference of one step.
std::optional<TraceDifference> difference_of(const Json& a, const Json& b) {
  if (auto found = scalar(a, b, "chain")) return found;
  if (a.contains("choices") && b.contains("choices"))
    if (auto found = tensors(a, b, "choices", "choices")) return found;
  for (const char* key : {"loss", "logits"})
    if (auto found = scalar(a, b, key)) return found;
  if (auto found = tensors(a, b, "gradients", "gradient")) return found;
  if (auto found = scalar(a, b, "norm")) return found;
  return tensors(a, b, "masters", "master");
}

}  // namespace

TraceComparison compare_traces(const std::filesystem::path& a, const std::filesystem::path& b) {
  const std::map<std::int64_t, Json> rows = rows_of(a), others = rows_of(b);
  TraceComparison comparison;
  for (const auto& [step, row] : rows) {
    const auto other = others.find(step);
    if (other == others.end()) continue;
    if (comparison.first == 0) comparison.first = step;
    comparison.last = step;
    if ((comparison.difference = difference_of(row, other->second))) return comparison;
  }
  if (comparison.first == 0)
    throw Error(Exit::file,
                fmt::format("{} (steps {} to {}) and {} (steps {} to {}) have no step in common", a.string(),
                            rows.begin()->first, rows.rbegin()->first, b.string(), others.begin()->first,
                            others.rbegin()->first));
  return comparison;
}

std::string difference_text(const TraceComparison& comparison) {
  if (!comparison.difference)
    return fmt::format("equal in steps {} to {}: choices of experts, losses, logits, gradients, norms and masters",
                       comparison.first, comparison.last);
  const TraceDifference& first = *comparison.difference;
  if (first.stage == "chain")
    return fmt::format("differ before step {}, where the traces begin: their chains are {} and {}", first.step, first.a,
                       first.b);
  return fmt::format("differ first in step {}: {}{}: {} and {}", first.step, first.stage,
                     first.tensor.empty() ? "" : " of " + first.tensor, first.a, first.b);
}

}  // namespace tessera
