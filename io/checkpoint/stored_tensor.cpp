#include "io/checkpoint/stored_tensor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "io/checkpoint/elements.hpp"
#include "io/checkpoint/payload_file.hpp"
#include "io/checkpoint/storage.hpp"

namespace tessera {

namespace fs = std::filesystem;

namespace {

using Json = nlohmann::json;

Error unfit(const fs::path& path, const std::string& why) { return {Exit::file, path.string() + ": " + why}; }

/// Where the elements of one dataset lie, all of them within the file; nothing where it is missing.
std::optional<hdf5::Dataset> placed(const hdf5::File& file, const std::string& path, std::int64_t bytes) {
  const std::optional<hdf5::Dataset> data = file.find_dataset(path);
  if (data && (data->offset < 0 || data->offset + data->shape.elements() * size_of(data->type) > bytes))
    throw unfit(file.path(), path + " reaches beyond the file");
  return data;
}

/// The experts of a projection that are stored one by one, put together.
StoredTensor assembled(const hdf5::File& file, StoredTensor tensor, std::int64_t bytes, std::int64_t elements) {
  Shape member;
  std::int64_t found = 0;
  for (std::int64_t e = 0; found < elements; ++e) {
    const std::string path = expert_path(tensor.path(), e);
    if (path.empty()) throw unfit(file.path(), "missing: " + tensor.path());
    const std::optional<hdf5::Dataset> data = placed(file, path, bytes);
    if (!data) throw unfit(file.path(), "missing: " + path);
    if (data->shape.rank() != 2 || (e > 0 && (data->shape != member || data->type != tensor.type)))
      throw unfit(file.path(), path + " does not fit the other experts");
    member = data->shape;
    tensor.type = data->type;
    tensor.parts.push_back({found, member.elements(), data->offset});
    found += member.elements();
  }
  tensor.axes = "expert," + file.text(expert_path(tensor.path(), 0), "axes");
  tensor.shape = Shape{std::ssize(tensor.parts), member[0], member[1]};
  return tensor;
}

StoredTensor tensor_of(const hdf5::File& file, const hdf5::TableRow& row, std::int64_t bytes) {
  StoredTensor tensor = named(file, row);
  const auto elements = static_cast<std::int64_t>(row.elements);
  if (const std::optional<hdf5::Dataset> data = placed(file, row.name, bytes)) {
    tensor.shape = data->shape;
    tensor.type = data->type;
    tensor.axes = file.text(row.name, "axes");
    if (file.has(row.name, "tied_to")) tensor.tied_to = file.text(row.name, "tied_to");
    tensor.parts.push_back({0, data->shape.elements(), data->offset});
  } else {
    tensor = assembled(file, std::move(tensor), bytes, elements);
  }
  if (tensor.shape.elements() != elements || row.non_finite != 0)
    throw unfit(file.path(), row.name + " has another size than its table says");
  return tensor;
}

}  // namespace

bool is_of_checkpoint(const hdf5::File& file) {
  return file.has(integrity_table) && file.has("/", "file_type") && file.text("/", "file_type") == checkpoint_file_type;
}

StoredTensor named(const hdf5::File& file, const hdf5::TableRow& row) {
  const std::size_t slash = row.name.rfind('/');
  if (slash == std::string::npos || slash < 2) throw unfit(file.path(), "its table names no tensor: " + row.name);
  return {row.name.substr(1, slash - 1), row.name.substr(slash + 1), {}, DType::f32, "", row.digest, "", {}};
}

/// Found by name: HDF5 1.10 frees what it never had when it lists a damaged group.
std::vector<StoredTensor> tensors_of(const hdf5::File& file, std::int64_t bytes) {
  std::vector<StoredTensor> tensors;
  std::map<std::string, std::int64_t> datasets;  // by slot
  for (const hdf5::TableRow& row : file.table(integrity_table)) {
    tensors.push_back(tensor_of(file, row, bytes));
    datasets["/" + tensors.back().slot] += std::ssize(tensors.back().parts);
  }
  for (const auto& [group, count] : datasets)
    if (const std::int64_t links = file.links(group); links != count)
      throw unfit(file.path(), fmt::format("{} holds {} datasets, and its table accounts for {}", group, links, count));
  return tensors;
}

std::uint64_t digest_in(const PayloadFile& file, const StoredTensor& tensor) {
  constexpr std::int64_t block = std::int64_t{1} << 18;  // elements: they stay in the cache from the file to the digest
  const std::int64_t size = size_of(tensor.type);
  std::vector<std::byte> bytes;
  std::uint64_t sum = 0;
  for (const StoredTensor::Part& part : tensor.parts)
    for (std::int64_t at = 0; at < part.count; at += block) {
      const std::int64_t count = std::min(block, part.count - at);
      bytes.resize(static_cast<std::size_t>(count * size));
      file.read(part.offset + at * size, bytes.data(), count * size);
      sum += host_digest(bytes.data(), tensor.type, count, part.first + at);
    }
  return sum;
}

void check_attributes(const hdf5::File& file, const Manifest& manifest) {
  std::int64_t complete = 0;
  std::vector<std::int64_t> version;
  if (file.has("/", "complete")) file.get("/", "complete", complete);
  if (complete != 1) throw unfit(file.path(), "is not complete");
  file.get("/", "format_version", version);
  if (version != std::vector<std::int64_t>{manifest.format.major, manifest.format.minor})
    throw unfit(file.path(), "has another format version than the manifest");
  if (file.text("/", "content_digest") != manifest.content_digest)
    throw unfit(file.path(), "belongs to another checkpoint: its content_digest differs");
  if (const std::string features = file.text("/", "required_features"); !features.empty())
    throw unfit(file.path(), "needs features that this build does not have: " + features);
  StateCounters::visit(manifest.counters, [&](const std::string& path, auto value) {
    const std::size_t slash = path.rfind('/');
    auto stored = value;
    file.get(path.substr(0, slash), path.c_str() + slash + 1, stored);
    if (stored != value) throw unfit(file.path(), path + " differs from the manifest");
  });
}

std::string to_bytes(const std::vector<StoredTensor>& tensors) {
  Json all = Json::array();
  for (const StoredTensor& t : tensors) {
    Json parts = Json::array();
    for (const StoredTensor::Part& part : t.parts) parts.push_back({part.first, part.count, part.offset});
    const int type = static_cast<int>(t.type);
    all.push_back({t.slot, t.name, t.axes, t.tied_to, t.digest, type, hdf5::dims_of(t.shape), parts});
  }
  std::string bytes;
  Json::to_msgpack(all, bytes);
  return bytes;
}

std::vector<StoredTensor> tensors_from(const std::string& bytes) {
  std::vector<StoredTensor> tensors;
  for (const Json& json : Json::from_msgpack(bytes)) {
    StoredTensor& t = tensors.emplace_back();
    t.slot = json[0];
    t.name = json[1];
    t.axes = json[2];
    t.tied_to = json[3];
    t.digest = json[4];
    t.type = static_cast<DType>(json[5].get<int>());
    t.shape = hdf5::shape_of(json[6].get<std::vector<std::int64_t>>());
    for (const Json& part : json[7]) t.parts.push_back({part[0], part[1], part[2]});
  }
  return tensors;
}

}  // namespace tessera
