#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "app/verbs/verbs.hpp"
#include "io/checkpoint/folder.hpp"
#include "io/checkpoint/reader.hpp"
#include "io/metrics/console.hpp"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::int64_t block = 1 << 20;

std::int64_t bytes_below(const fs::path& folder) {
  std::int64_t bytes = 0;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const auto size = entry.file_size(error);
    if (!error) bytes += static_cast<std::int64_t>(size);
  }
  return bytes;
}

Json listed(const fs::path& folder) {
  Json row = {{"step", nullptr}, {"path", folder.string()},      {"valid", false},
              {"reason", ""},    {"bytes", bytes_below(folder)}, {"content_digest", nullptr}};
  try {
    const Checkpoint checkpoint(folder);
    row["step"] = checkpoint.manifest().counters.step;
    row["content_digest"] = checkpoint.manifest().content_digest;
    row["valid"] = true;
  } catch (const Error& error) {
    row["reason"] = error.what();
  }
  return row;
}

Json described(const StoredTensor& tensor) {
  Json shape = Json::array();
  for (int i = 0; i < tensor.shape.rank(); ++i) shape.push_back(tensor.shape[i]);
  return {{"name", tensor.name},
          {"shape", shape},
          {"dtype", tensor.type == DType::f32 ? "fp32" : name_of(tensor.type)},
          {"digest", hex(tensor.digest)}};
}

/// Greatest absolute difference of fp32 elements; where either is NaN and the bits differ, infinity.
double max_difference(const Checkpoint& a, const Checkpoint& b, const StoredTensor& in_a, const StoredTensor& in_b) {
  double most = 0;
  std::vector<float> x(static_cast<std::size_t>(block)), y(x.size());
  for (std::int64_t first = 0; first < in_a.shape.elements(); first += block) {
    const std::int64_t count = std::min(block, in_a.shape.elements() - first);
    a.read(in_a, first, count, x.data());
    b.read(in_b, first, count, y.data());
    if (std::memcmp(x.data(), y.data(), static_cast<std::size_t>(count) * sizeof(float)) == 0) continue;
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
      const double difference = std::abs(static_cast<double>(x[i]) - y[i]);
      most = std::isnan(difference) ? INFINITY : std::max(most, difference);
    }
  }
  return most;
}

/// Null for a tensor that one side lacks, or holds in another shape or type.
Json difference_of(const Checkpoint& a, const Checkpoint& b, const StoredTensor* in_a, const StoredTensor* in_b) {
  const bool comparable =
      in_a && in_b && in_a->shape == in_b->shape && in_a->type == in_b->type && in_a->type == DType::f32;
  if (!comparable) return nullptr;
  return max_difference(a, b, *in_a, *in_b);
}

}  // namespace

int run_checkpoint_ls(const CheckpointOptions& options) {
  std::error_code error;
  if (!fs::is_directory(options.path, error))
    throw Error(Exit::file, options.path + ": is neither a checkpoint nor a run directory");
  Json rows = Json::array();
  for (const StepFolder& folder : step_folders(options.path)) {
    Json row = listed(folder.path);
    row["step"] = folder.step;
    rows.push_back(row);
  }
  if (rows.empty() && fs::exists(fs::path(options.path) / "manifest.json", error)) rows.push_back(listed(options.path));
  if (options.format == Format::json)
    fmt::print("{}\n", rows.dump());
  else if (rows.empty())
    fmt::print("{}: holds no checkpoints\n", options.path);
  else
    for (const Json& row : rows)
      fmt::print("{:>10}  {:>10}  {}  {}\n", row["step"].dump(), bytes_text(row["bytes"]),
                 row["valid"] ? row["content_digest"].get<std::string>() : "invalid",
                 row["valid"] ? row["path"].get<std::string>() : row["reason"].get<std::string>());
  return 0;
}

int run_checkpoint_inspect(const CheckpointOptions& options) {
  const Checkpoint checkpoint(find_checkpoint(options.path));
  const Manifest& manifest = checkpoint.manifest();
  Json json = {{"step", manifest.counters.step},
               {"tokens", manifest.counters.tokens},
               {"content_digest", manifest.content_digest},
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
    fmt::print("{}\n", json.dump());
    return 0;
  }
  fmt::print("{}\nstep {}, {} tokens, {}, format {}, saved by {} ranks, experts {}, content digest {}\n",
             checkpoint.folder().string(), manifest.counters.step, manifest.counters.tokens,
             bytes_text(manifest.bytes()), manifest.format.text(), manifest.world_size, name_of(manifest.experts),
             manifest.content_digest);
  for (const StoredTensor& tensor : checkpoint.tensors())
    fmt::print("  {:<60} {:<18} {:<5} {}\n", tensor.path(), tensor.shape.text(), name_of(tensor.type),
               hex(tensor.digest));
  return 0;
}

int run_checkpoint_verify(const CheckpointOptions& options) {
  std::vector<std::string> failures;
  try {
    failures = Checkpoint(find_checkpoint(options.path)).verify();
  } catch (const Error& error) {
    failures.push_back(error.what());
  }
  if (options.format == Format::json)
    fmt::print("{}\n", Json{{"ok", failures.empty()}, {"failures", failures}}.dump());
  else if (failures.empty())
    fmt::print("{}: every byte is as it was saved\n", options.path);
  for (const std::string& failure : failures) fmt::print(stderr, "{}\n", failure);
  return failures.empty() ? 0 : static_cast<int>(Exit::file);
}

int run_checkpoint_diff(const CheckpointOptions& options) {
  const Checkpoint a(find_checkpoint(options.path)), b(find_checkpoint(options.other));
  std::map<std::string, std::pair<const StoredTensor*, const StoredTensor*>> all;
  for (const StoredTensor& tensor : a.tensors()) all[tensor.path()].first = &tensor;
  for (const StoredTensor& tensor : b.tensors()) all[tensor.path()].second = &tensor;
  bool equal = a.manifest().content_digest == b.manifest().content_digest;
  Json tensors = Json::array();
  for (const auto& [path, pair] : all) {
    const Json difference = difference_of(a, b, pair.first, pair.second);
    const bool same = pair.first && pair.second && pair.first->digest == pair.second->digest && difference == 0.0;
    equal = equal && same;
    tensors.push_back({{"name", path}, {"max_abs", difference}});
    if (options.format == Format::text && !same) fmt::print("{:<60} {}\n", path, difference.dump());
  }
  if (options.format == Format::json)
    fmt::print("{}\n", Json{{"equal", equal}, {"tensors", tensors}}.dump());
  else
    fmt::print("{}\n", equal ? "equal" : "different");
  return equal ? 0 : 1;
}

}  // namespace tessera
