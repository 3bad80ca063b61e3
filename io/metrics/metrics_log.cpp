#include "io/metrics/metrics_log.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <numbers>
#include <string_view>
#include <nlohmann/json.hpp>

namespace tessera {
namespace {

/// The shortest decimal that reads back to the same number; the JSON library's is not always the shortest.
template <class T, class... Format>
std::string number(T value, Format... format) {
  if (!std::isfinite(value)) return "null";
  char text[400];  // room for 1e308 with three decimals
  return {text, std::to_chars(text, text + sizeof text, value, format...).ptr};
}
std::string measured(double value) { return number(value, std::chars_format::fixed, 3); }

/// What comes before a set's name in its keys.
constexpr std::string_view loss_of = "eval_loss/", bits_of = "bits_a_byte/";

/// The evaluation sets that have keys in a row, in their order.
std::vector<EvaluatedSet> sets_in(const nlohmann::ordered_json& json) {
  const auto real = [](const nlohmann::ordered_json& value) {
    return value.is_number() ? value.get<double>() : std::nan("");
  };
  std::vector<EvaluatedSet> sets;
  for (const auto& [key, value] : json.items()) {
    if (key.starts_with(loss_of))
      sets.push_back({key.substr(loss_of.size()), static_cast<float>(real(value)), std::nullopt});
    if (!sets.empty() && key == std::string(bits_of) + sets.back().name) sets.back().bits_a_byte = real(value);
  }
  return sets;
}

}  // namespace

std::optional<double> bits_a_byte(float loss, std::int64_t tokens, std::int64_t bytes) {
  if (bytes == 0) return std::nullopt;
  return double{loss} * static_cast<double>(tokens) / std::numbers::ln2 / static_cast<double>(bytes);
}

std::string to_json(const MetricsRow& row) {
  const std::string blocked =
      row.save_blocked_ms ? fmt::format("\"save_blocked_ms\":{},", measured(*row.save_blocked_ms)) : "";
  std::string evaluation = row.eval_loss ? fmt::format("\"eval_loss\":{},", number(*row.eval_loss)) : "";
  for (const EvaluatedSet& set : row.eval_sets) {
    evaluation += fmt::format("\"{}{}\":{},", loss_of, set.name, number(set.loss));
    if (set.bits_a_byte) evaluation += fmt::format("\"{}{}\":{},", bits_of, set.name, number(*set.bits_a_byte));
  }
  const std::string targets = row.targets ? fmt::format("\"targets\":{},", *row.targets) : "";
  const std::string experts = row.expert_rows ? fmt::format("\"expert_rows\":{},", measured(*row.expert_rows)) : "";
  const std::string routing = row.max_vio ? fmt::format("\"max_vio\":{},\"max_vio_most\":{},", number(*row.max_vio),
                                                        number(row.max_vio_most.value_or(0)))
                                          : "";
  return fmt::format(
      "{{\"step\":{},\"loss\":{},{}\"balance_loss\":{},\"z_loss\":{},\"expert_load\":{},\"grad_norm\":{},"
      "\"clip_coef\":{},\"lr\":{},\"tokens\":{},{}\"step_ms\":{},{}\"tokens_per_s\":{},\"mfu\":{},\"memory_bytes\":{},"
      "\"ranks\":{},\"time\":{},{}{}"
      "\"skipped\":{},\"spike\":{},\"restart\":{}}}",
      row.step, number(row.loss), evaluation, number(row.balance_loss), number(row.z_loss), number(row.expert_load),
      number(row.grad_norm), number(row.clip_coef), number(row.lr), row.tokens, targets, measured(row.step_ms), blocked,
      measured(row.tokens_per_s), row.mfu ? number(*row.mfu, std::chars_format::fixed, 5) : "null", row.memory_bytes,
      row.ranks, measured(row.time), experts, routing, row.skipped, row.spike, row.restart);
}

std::vector<MetricsRow> read_metrics(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) throw Error(Exit::environment, fmt::format("{}: cannot be read: {}", path.string(), std::strerror(errno)));
  std::vector<MetricsRow> rows;
  std::int64_t number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    const auto json = nlohmann::ordered_json::parse(line, nullptr, false);
    const auto value = [&](const char* key) { return json.contains(key) ? json[key] : nlohmann::ordered_json(); };
    if (!json.is_object() || !value("step").is_number_integer()) {
      if (!file.eof()) tell_of_no_row(path, number, "passed over");  // an unfinished last line is a killed run's
      continue;
    }
    const auto real = [&](const char* key) { return value(key).is_number() ? value(key).get<double>() : std::nan(""); };
    const auto single = [&](const char* key) { return static_cast<float>(real(key)); };
    const auto integer = [&](const char* key) {
      return value(key).is_number_integer() ? value(key).get<std::int64_t>() : 0;
    };
    MetricsRow& row = rows.emplace_back();
    row.step = integer("step");
    row.loss = single("loss");
    if (json.contains("eval_loss")) row.eval_loss = single("eval_loss");
    row.eval_sets = sets_in(json);
    row.balance_loss = single("balance_loss");
    row.z_loss = single("z_loss");
    row.expert_load = single("expert_load");
    row.grad_norm = single("grad_norm");
    row.clip_coef = single("clip_coef");
    row.lr = single("lr");
    row.tokens = integer("tokens");
    if (json.contains("targets")) row.targets = integer("targets");
    row.step_ms = real("step_ms");
    if (json.contains("save_blocked_ms")) row.save_blocked_ms = real("save_blocked_ms");
    row.tokens_per_s = real("tokens_per_s");
    if (value("mfu").is_number()) row.mfu = real("mfu");
    row.memory_bytes = integer("memory_bytes");
    row.ranks = integer("ranks");
    row.time = value("time").is_number() ? real("time") : 0;
    row.spike = value("spike") == true;
    if (json.contains("expert_rows")) row.expert_rows = real("expert_rows");
    if (json.contains("max_vio")) row.max_vio = real("max_vio");
    if (json.contains("max_vio_most")) row.max_vio_most = real("max_vio_most");
    row.skipped = value("skipped") == true;
    row.restart = integer("restart");
  }
  return rows;
}

MetricsLog::MetricsLog(const std::filesystem::path& path, std::int64_t step) : rows_(path, step) {}

void MetricsLog::replace_last(const MetricsRow& row) { rows_.replace_last(to_json(row) + '\n'); }

Problems MetricsLog::append(const MetricsRow& row) { return rows_.append(to_json(row) + '\n', row.step); }

}  // namespace tessera
