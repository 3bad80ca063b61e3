#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "app/verbs/verbs.hpp"
#include "io/checkpoint/best.hpp"
#include "io/checkpoint/elements.hpp"
#include "io/checkpoint/folder.hpp"
#include "io/checkpoint/reader.hpp"
#include "io/checkpoint/storage.hpp"
#include "io/files/access.hpp"
#include "io/files/json_text.hpp"
#include "io/metrics/console.hpp"
#include "io/metrics/metrics_log.hpp"
#include "kernels/base/attempt.hpp"
#include "kernels/digest/digest.hpp"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::int64_t block = 1 << 20;

/// One checkpoint of a run directory, and whether it belongs to a line of steps that a branch has left.
struct ListedStep {
  StepFolder folder;
  bool abandoned;
};
std::vector<ListedStep> all_in(const fs::path& run) {
  std::vector<ListedStep> all;
  for (const StepFolder& folder : step_folders(run)) all.push_back({folder, false});
  for (const StepFolder& folder : abandoned_folders(run)) all.push_back({folder, true});
  return all;
}

/// When a checkpoint was saved, ISO 8601 in UTC: the time of its last file, which a copy may have changed.
Json time_of(const fs::path& folder) {
  std::error_code error;
  const auto written = fs::last_write_time(folder / manifest_file, error);
  if (error) return nullptr;
  return fmt::format("{:%FT%TZ}", std::chrono::time_point_cast<std::chrono::seconds>(
                                      std::chrono::file_clock::to_sys(written)));
}

/// A row of the list. busy: the checkpoint cannot be read now, so nothing is known about it.
Json listed(const fs::path& folder) {
  Json row = {{"step", nullptr},           {"path", folder.string()}, {"valid", false},
              {"busy", false},             {"reason", ""},            {"bytes", 0},
              {"content_digest", nullptr}, {"abandoned", false},      {"saved", time_of(folder)},
              {"loss", nullptr},           {"eval_loss", nullptr},    {"marks", Json::array()}};
  try {
    row["bytes"] = bytes_below(folder);
    const Checkpoint checkpoint(folder);
    row["step"] = checkpoint.manifest().counters.step;
    row["content_digest"] = checkpoint.manifest().content_digest;
    row["valid"] = true;
  } catch (const Error& error) {
    row["busy"] = error.code() == Exit::environment;
    row["reason"] = error.what();
  }
  return row;
}

/// A number as the record of rows has it: the shortest decimal, or null.
Json shortest(float value) { return std::isfinite(value) ? Json::parse(fmt::format("{}", value)) : Json(); }

/// The path of a run's best checkpoint; empty: there is none, or it cannot be known now.
std::string best_in(const fs::path& run) try {
  return best_checkpoint(run).value_or(fs::path()).string();
} catch (const Error&) {
  return "";
}

/// Adds to the rows of a run's checkpoints the losses of their steps, by the record of their line of steps. Marks the
/// last valid one that the run has, and the best by evaluation.
void add_losses(Json& rows, const fs::path& run) {
  std::map<std::string, std::map<std::int64_t, MetricsRow>> records;  // by file name
  Json* last = nullptr;
  for (Json& row : rows) {
    const std::string name = fs::path(row["path"].get<std::string>()).filename().string();
    const auto parts = abandoned(name);
    const std::string record = parts ? abandoned_name(parts->branch, metrics_file) : metrics_file;
    if (std::error_code unknown; !records.contains(record) && fs::exists(run / record, unknown))
      for (const MetricsRow& of : read_metrics(run / record)) records[record].insert_or_assign(of.step, of);
    const auto of = records[record].find(row["step"]);
    if (of != records[record].end()) {
      row["loss"] = shortest(of->second.loss);
      if (of->second.eval_loss) row["eval_loss"] = shortest(*of->second.eval_loss);
    }
    if (row["abandoned"]) row["marks"].push_back("abandoned");
    if (!row["valid"] || row["abandoned"]) continue;
    last = &row;
  }
  if (last) (*last)["marks"].push_back("last");
  const std::string best = best_in(run);
  for (Json& row : rows)
    if (row["path"] == best) row["marks"].push_back("best");
}

void print_listed(const Json& rows) {
  fmt::print("{:>10}  {:>10}  {:<20}  {:>8}  {:>8}  {:<7}  {:<16}  {}\n", "step", "size", "saved (UTC)", "loss", "eval",
             "", "digest", "path");
  const auto number = [](const Json& value) {
    return value.is_null() ? "-" : fmt::format("{:.4f}", value.get<double>());
  };
  for (const Json& row : rows) {
    const bool valid = row["valid"], busy = row["busy"];
    const std::string digest = valid ? row["content_digest"] : Json("-");
    const std::string reason = row["reason"];  // contains the path
    const std::string where = valid ? row["path"] : Json((busy ? "busy: " : "") + reason);
    const std::string saved = row["saved"].is_null() ? "-" : row["saved"].get<std::string>();
    const auto marks = row["marks"].get<std::vector<std::string>>();
    fmt::print("{:>10}  {:>10}  {:<20}  {:>8}  {:>8}  {:<7}  {:<16}  {}{}\n", row["step"].dump(),
               bytes_text(row["bytes"]), saved, number(row["loss"]), number(row["eval_loss"]),
               valid ? "valid" : busy ? "busy" : "invalid", digest, where,
               marks.empty() ? "" : fmt::format(" ({})", fmt::join(marks, ", ")));
  }
}

/// Adds everything that is wrong with a checkpoint; reads every byte.
void verify(const fs::path& folder, Problems& problems) {
  attempt(problems, [&] {
    if (entry_at(folder) != Entry::folder) throw no_checkpoint(folder);
    for (const std::string& wrong : Checkpoint(folder).verify()) problems.add(Exit::file, wrong);
  });
}

/// The exit code of what was found in all: one that cannot be read now comes before damage.
int code_of(const Problems& problems) {
  const auto busy = [](const Problem& problem) { return problem.code == Exit::environment; };
  if (std::ranges::any_of(problems.list(), busy)) return static_cast<int>(Exit::environment);
  return problems.empty() ? 0 : static_cast<int>(Exit::file);
}

Json described(const StoredTensor& tensor) {
  return {{"name", tensor.name},
          {"shape", tensor.shape.dims()},
          {"dtype", tensor.type == DType::f32 ? "fp32" : name_of(tensor.type)},
          {"digest", hex(tensor.digest)}};
}

/// Reads elements of a tensor of any type as fp32.
class Floats {
 public:
  const float* read(const Checkpoint& from, const StoredTensor& tensor, std::int64_t first, std::int64_t count) {
    stored_.resize(static_cast<std::size_t>(count * size_of(tensor.type)));
    floats_.resize(static_cast<std::size_t>(count));
    from.read(tensor, first, count, stored_.data());
    convert_elements(floats_.data(), DType::f32, stored_.data(), tensor.type, count);
    return floats_.data();
  }

 private:
  std::vector<std::byte> stored_;
  std::vector<float> floats_;
};

/// Greatest absolute difference of elements; infinity if bits differ and either is NaN.
double max_difference(const Checkpoint& a, const Checkpoint& b, const StoredTensor& in_a, const StoredTensor& in_b) {
  double most = 0;
  Floats of_a, of_b;
  for (std::int64_t first = 0; first < in_a.shape.elements(); first += block) {
    const std::int64_t count = std::min(block, in_a.shape.elements() - first);
    const float *const x = of_a.read(a, in_a, first, count), *const y = of_b.read(b, in_b, first, count);
    for (std::int64_t i = 0; i < count; ++i) {
      if (std::memcmp(x + i, y + i, sizeof *x) == 0) continue;
      const double difference = std::abs(static_cast<double>(x[i]) - y[i]);
      most = std::isnan(difference) ? INFINITY : std::max(most, difference);
    }
  }
  return most;
}

/// One tensor in two checkpoints; null in a checkpoint that lacks it.
struct Pair {
  const StoredTensor *a = nullptr, *b = nullptr;

  bool alike() const { return a && b && a->shape == b->shape && a->type == b->type; }
  bool comparable() const {
    const auto real = [](DType type) { return type == DType::f32 || type == DType::bf16; };
    return a && b && a->shape == b->shape && real(a->type) && real(b->type);
  }
  /// Text of a line: `difference`, and how the two are stored if they are stored differently.
  std::string text(const std::optional<double>& difference) const {
    const auto stored = [](const StoredTensor* tensor) {
      return tensor ? fmt::format("{} {}", tensor->shape.text(), name_of(tensor->type)) : "absent";
    };
    const std::string number = difference ? fmt::format("{}", *difference) : "";
    if (alike()) return number;
    return fmt::format("{}{}({}; {})", number, number.empty() ? "" : " ", stored(a), stored(b));
  }
};

/// Values of the counters that differ, by path; null in a checkpoint that lacks one.
std::map<std::string, std::array<Json, 2>> differing(const StateCounters& a, const StateCounters& b) {
  std::map<std::string, std::array<Json, 2>> values;
  StateCounters::visit(a, [&](const char* path, const auto& value) { values[path][0] = value; });
  StateCounters::visit(b, [&](const char* path, const auto& value) { values[path][1] = value; });
  std::erase_if(values, [](const auto& counter) { return counter.second[0] == counter.second[1]; });
  return values;
}

}  // namespace

int run_checkpoint_ls(const CheckpointOptions& options) {
  if (entry_at(options.path) != Entry::folder) throw no_checkpoint(options.path);
  Json rows = Json::array();
  for (const ListedStep& step : all_in(options.path)) {
    Json row = listed(step.folder.path);
    row["step"] = step.folder.step;
    row["abandoned"] = step.abandoned;
    rows.push_back(row);
  }
  add_losses(rows, options.path);
  if (rows.empty() && entry_at(fs::path(options.path) / manifest_file) != Entry::none)
    rows.push_back(listed(options.path));
  if (options.format == Format::json)
    fmt::print("{}\n", json_text(rows));
  else if (const std::string runs = runs_text(options.path); rows.empty())
    fmt::print("{}: holds no checkpoints{}{}\n", options.path, runs.empty() ? "" : "; ", runs);
  else
    print_listed(rows);
  const bool busy = std::ranges::any_of(rows, [](const Json& row) { return row["busy"] == true; });
  return busy ? static_cast<int>(Exit::environment) : 0;
}

int run_checkpoint_inspect(const CheckpointOptions& options) {
  const Checkpoint checkpoint(find_checkpoint(options.path));
  const Manifest& manifest = checkpoint.manifest();
  Json json = {{"step", manifest.counters.step},
               {"tokens", manifest.counters.tokens},
               {"content_digest", manifest.content_digest},
               {"chain", hex(manifest.counters.chain)},
               {"format_version", manifest.format.text()},
               {"world_size", manifest.world_size},
               {"expert_layout", name_of(manifest.experts)},
               {"tensors", Json::array()},
               {"optimizer", Json::object()}};
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    if (tensor.slot == "model")
      json["tensors"].push_back(described(tensor));
    else
      json["optimizer"][tensor.slot].push_back(described(tensor));
  }
  if (options.format == Format::json) {
    fmt::print("{}\n", json_text(json));
    return 0;
  }
  fmt::print("{}\nstep {}, {} tokens, {}, format {}, saved by {} ranks, experts {}, content digest {}, chain {}\n",
             checkpoint.folder().string(), manifest.counters.step, manifest.counters.tokens,
             bytes_text(manifest.bytes()), manifest.format.text(), manifest.world_size, name_of(manifest.experts),
             manifest.content_digest, hex(manifest.counters.chain));
  for (const StoredTensor& tensor : checkpoint.tensors())
    fmt::print("  {:<60} {:<18} {:<5} {}\n", tensor.path(), tensor.shape.text(), name_of(tensor.type),
               hex(tensor.digest));
  return 0;
}

int run_checkpoint_verify(const CheckpointOptions& options) {
  std::vector<fs::path> folders;
  for (const ListedStep& step : all_in(options.path)) folders.push_back(step.folder.path);
  if (folders.empty()) folders.emplace_back(options.path);  // a step folder; anything else is reported as invalid
  Problems all;
  std::vector<std::string> failures;
  for (const fs::path& folder : folders) {
    Problems found;
    verify(folder, found);
    all.add(found);
    for (const Problem& problem : found.list()) failures.push_back(problem.text);
    for (const Problem& problem : found.list()) fmt::print(stderr, "{}\n", problem.text);
    if (options.format == Format::text && found.empty())
      fmt::print("{}: every byte is as it was saved\n", folder.string());
    std::fflush(stdout);
  }
  if (options.format == Format::json)
    fmt::print("{}\n", json_text(Json{{"ok", failures.empty()}, {"failures", failures}}));
  return code_of(all);
}

int run_checkpoint_diff(const CheckpointOptions& options) {
  const Checkpoint a(find_checkpoint(options.path)), b(find_checkpoint(options.other));
  std::map<std::string, Pair> all;
  for (const StoredTensor& tensor : a.tensors()) all[tensor.path()].a = &tensor;
  for (const StoredTensor& tensor : b.tensors()) all[tensor.path()].b = &tensor;
  bool equal = a.manifest().content_digest == b.manifest().content_digest;
  Json tensors = Json::array();
  for (const auto& [path, pair] : all) {
    std::optional<double> difference;
    if (pair.comparable()) difference = max_difference(a, b, *pair.a, *pair.b);
    const bool same = pair.alike() && pair.a->digest == pair.b->digest && difference.value_or(0) == 0;
    equal = equal && same;
    tensors.push_back({{"name", path}, {"max_abs", difference ? Json(*difference) : Json()}});
    if (options.format == Format::text && !same) fmt::print("{:<60} {}\n", path, pair.text(difference));
  }
  const auto counters = differing(a.manifest().counters, b.manifest().counters);
  if (options.format == Format::text)
    for (const auto& [path, values] : counters)
      fmt::print("{:<60} {}; {}\n", path, values[0].dump(), values[1].dump());
  if (options.format == Format::json)
    fmt::print("{}\n", json_text(Json{{"equal", equal}, {"tensors", tensors}, {"counters", counters}}));
  else
    fmt::print("{}\n", equal ? "equal" : "different");
  return equal ? 0 : 1;
}

}  // namespace tessera
