#include "io/metrics/routing_log.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "io/files/access.hpp"
#include "kernels/digest/digest.hpp"

namespace tessera {
namespace {

/// A row of JSON; nothing if it is none.
std::optional<RoutingRow> row_of(const std::string& line) {
  const auto json = nlohmann::json::parse(line, nullptr, false);
  const auto integer = [&](const char* key) { return json.contains(key) && json[key].is_number_integer(); };
  if (!json.is_object() || !integer("step") || !integer("layer") || !json.contains("load")) return std::nullopt;
  RoutingRow row;
  try {
    row.step = json["step"];
    row.layer = json["layer"];
    row.load = json["load"].get<std::vector<std::int64_t>>();
    if (json.contains("moved")) row.moved = json["moved"].get<double>();
    row.scores_entropy = json.value("scores_entropy", 0.0);
    if (json.contains("bias")) row.bias = json["bias"].get<std::vector<float>>();
    if (json.contains("dropped")) row.dropped = json["dropped"].get<double>();
    if (json.contains("differ")) row.differ = json["differ"].get<double>();
    const std::string choices = json.value("choices", "");
    std::from_chars(choices.data(), choices.data() + choices.size(), row.choices, 16);
    row.skipped = json.value("skipped", false);
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
  return row;
}

/// The same of a row of an evaluation.
std::optional<KeptRow> kept_of(const std::string& line) {
  const auto json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object() || !json.contains("kept") || !json["kept"].is_number()) return std::nullopt;
  return KeptRow{json.value("step", std::int64_t{0}), json.value("layer", std::int64_t{0}), json["kept"].get<double>()};
}

/// The rows of a file's lines that `parse` makes any of.
template <class Row, class F>
std::vector<Row> read_rows(const std::filesystem::path& path, const F& parse) {
  std::vector<Row> rows;
  if (entry_at(path) == Entry::none) return rows;
  std::ifstream file(path);
  if (!file) throw Error(Exit::environment, fmt::format("{}: cannot be read: {}", path.string(), std::strerror(errno)));
  for (std::string line; std::getline(file, line);)
    if (auto row = parse(line)) rows.push_back(std::move(*row));
  return rows;
}

/// Half the sum of the changes of shares; nothing if the experts are not as many.
std::optional<double> moved_between(const RoutingRow& before, const RoutingRow& now) {
  if (before.load.size() != now.load.size()) return std::nullopt;
  double sum = 0;
  for (std::size_t e = 0; e < now.load.size(); ++e) sum += std::abs(now.share(e) - before.share(e));
  return sum / 2;
}

}  // namespace

double RoutingRow::share(std::size_t expert) const {
  const std::int64_t all = std::accumulate(load.begin(), load.end(), std::int64_t{0});
  return all > 0 ? static_cast<double>(load[expert]) / static_cast<double>(all) : 0;
}
double RoutingRow::max_vio() const {
  const auto most = std::ranges::max_element(load);
  if (most == load.end()) return 0;
  return share(static_cast<std::size_t>(most - load.begin())) * static_cast<double>(load.size()) - 1;
}
double RoutingRow::least() const {
  const auto least = std::ranges::min_element(load);
  if (least == load.end()) return 0;
  return share(static_cast<std::size_t>(least - load.begin())) * static_cast<double>(load.size());
}
double RoutingRow::entropy() const {
  if (load.size() < 2) return 0;
  double sum = 0;
  for (std::size_t e = 0; e < load.size(); ++e)
    if (const double f = share(e); f > 0) sum -= f * std::log(f);
  return sum / std::log(static_cast<double>(load.size()));
}
std::int64_t RoutingRow::unused() const { return std::ranges::count(load, 0); }

std::string to_json(const RoutingRow& row) {
  const auto share = [](const char* name, const std::optional<double>& of) {
    return of ? fmt::format("\"{}\":{},", name, *of) : "";
  };
  const std::string bias = row.bias.empty() ? "" : fmt::format("\"bias\":[{}],", fmt::join(row.bias, ","));
  return fmt::format(
      "{{\"step\":{},\"layer\":{},\"load\":[{}],\"max_vio\":{},\"least\":{},\"entropy\":{},\"unused\":{},{}"
      "\"scores_entropy\":{},{}{}{}\"choices\":\"{}\",\"skipped\":{}}}",
      row.step, row.layer, fmt::join(row.load, ","), row.max_vio(), row.least(), row.entropy(), row.unused(),
      share("moved", row.moved), row.scores_entropy, share("dropped", row.dropped), share("differ", row.differ), bias,
      hex(row.choices), row.skipped);
}

std::string to_json(const KeptRow& row) {
  return fmt::format("{{\"step\":{},\"layer\":{},\"kept\":{}}}", row.step, row.layer, row.kept);
}

std::vector<RoutingRow> read_routing(const std::filesystem::path& path) { return read_rows<RoutingRow>(path, row_of); }
std::vector<KeptRow> read_kept(const std::filesystem::path& path) { return read_rows<KeptRow>(path, kept_of); }

RoutingLog::RoutingLog(const std::filesystem::path& path, std::int64_t step) : rows_(path, step) {
  for (RoutingRow& row : read_routing(path)) last_[row.layer] = std::move(row);
}

Problems RoutingLog::append(std::vector<RoutingRow> rows) {
  if (rows.empty()) return {};
  std::string lines;
  for (RoutingRow& row : rows) {
    const auto before = last_.find(row.layer);
    if (before != last_.end()) row.moved = moved_between(before->second, row);
    lines += to_json(row) + '\n';
    last_[row.layer] = row;
  }
  return rows_.append(lines, rows.front().step);
}

Problems RoutingLog::append_kept(const std::vector<KeptRow>& rows) {
  if (rows.empty()) return {};
  std::string lines;
  for (const KeptRow& row : rows) lines += to_json(row) + '\n';
  return rows_.append(lines, rows.front().step);
}

}  // namespace tessera
