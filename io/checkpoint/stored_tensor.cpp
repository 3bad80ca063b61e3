#include "io/checkpoint/stored_tensor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>

#include "core/optim/average.hpp"
#include "io/checkpoint/elements.hpp"
#include "io/checkpoint/manifest.hpp"
#include "io/checkpoint/storage.hpp"
#include "kernels/digest/digest.hpp"

namespace tessera {
namespace {

/// A stored tensor with the name and the digest of a row, and nothing else yet.
StoredTensor named(const hdf5::File& file, const IntegrityRow& row) {
  const std::size_t slash = row.name.rfind('/');
  if (slash == std::string::npos || slash < 2) throw file.unfit("its table names no tensor: " + row.name);
  return {row.name.substr(1, slash - 1), row.name.substr(slash + 1), {}, DType::f32, "", row.digest, "", {}};
}

/// Appends a dataset to the tensor's. Throws unless all of it lies within the file.
void add_dataset(const hdf5::File& file, StoredTensor& tensor, std::int64_t count, std::int64_t offset,
              std::int64_t bytes) {
  if (offset < 0 || count > bytes / size_of(tensor.type) || offset > bytes - count * size_of(tensor.type))
    throw file.unfit(tensor.path() + " reaches beyond the file");
  tensor.datasets.push_back({tensor.datasets.empty() ? 0 : tensor.datasets.back().first + count, count, offset});
}

/// Appends the datasets of a tensor whose experts are stored one by one.
void add_experts(const hdf5::File& file, StoredTensor& tensor, std::int64_t elements, std::int64_t bytes) {
  Shape member;
  for (std::int64_t e = 0; e * member.elements() < elements; ++e) {
    const std::string path = expert_path(tensor.path(), e);
    if (path.empty() || !file.has(path)) throw file.unfit("missing: " + (path.empty() ? tensor.path() : path));
    const hdf5::Dataset data = file.dataset(path);
    if (data.shape.rank() != 2 || (e > 0 && (data.shape != member || data.type != tensor.type)))
      throw file.unfit(path + " does not fit the other experts");
    member = data.shape;
    tensor.type = data.type;
    add_dataset(file, tensor, member.elements(), data.offset, bytes);
  }
  tensor.axes = "expert," + file.text(expert_path(tensor.path(), 0), "axes");
  tensor.shape = Shape{std::ssize(tensor.datasets), member[0], member[1]};
}

StoredTensor tensor_of(const hdf5::File& file, const IntegrityRow& row, std::int64_t bytes) {
  StoredTensor tensor = named(file, row);
  const auto elements = static_cast<std::int64_t>(row.elements);
  if (file.has(row.name)) {
    const hdf5::Dataset data = file.dataset(row.name);
    tensor.shape = data.shape;
    tensor.type = data.type;
    tensor.axes = file.text(row.name, "axes");
    if (file.has(row.name, "tied_to")) tensor.tied_to = file.text(row.name, "tied_to");
    add_dataset(file, tensor, data.shape.elements(), data.offset, bytes);
  } else {
    add_experts(file, tensor, elements, bytes);
  }
  if (tensor.shape.elements() != elements || row.non_finite != 0)
    throw file.unfit(row.name + " has another size than its table says");
  return tensor;
}

/// The tensor of a row, from the row and the next of the `places` alone: no dataset is opened. Removes the places
/// taken.
StoredTensor indexed_tensor(const hdf5::File& file, const IntegrityRow& row, std::int64_t bytes,
                            std::span<const std::uint64_t>& places) {
  StoredTensor tensor = named(file, row);
  const auto type = std::ranges::find_if(hdf5::stored_types, [&](DType known) { return row.type == name_of(known); });
  const auto axes = std::ranges::find(row.shape, std::uint64_t{0});
  const auto product = std::accumulate(row.shape.begin(), axes, std::uint64_t{1}, std::multiplies<>());
  if (type == std::end(hdf5::stored_types) || axes == row.shape.begin() || product != row.elements ||
      row.datasets == 0 || row.datasets > places.size() || row.elements % row.datasets != 0 ||
      row.elements > static_cast<std::uint64_t>(bytes))
    throw file.unfit(row.name + " is no tensor");
  tensor.shape = Shape(std::vector<std::int64_t>(row.shape.begin(), axes));
  tensor.type = *type;
  tensor.axes = row.axes;
  tensor.tied_to = row.tied_to;
  for (const std::uint64_t place : places.first(row.datasets))
    add_dataset(file, tensor, static_cast<std::int64_t>(row.elements / row.datasets), static_cast<std::int64_t>(place),
             bytes);
  places = places.subspan(row.datasets);
  return tensor;
}

}  // namespace

StoredTensor planned(const StateTensor& tensor, ExpertWeights experts) {
  StoredTensor stored{tensor.slot, tensor.name, tensor.shape, tensor.type, axes_of(tensor.role, tensor.shape.rank()), 0,
                      "",          {}};
  const bool weights = tensor.slot == "model" || tensor.slot == Average::slot;
  if (weights) stored.tied_to = tensor.tied_to;  // optimizer state is not tied
  const std::int64_t datasets = by_expert(tensor, experts) ? tensor.shape[0] : 1;
  const std::int64_t count = tensor.shape.elements() / datasets;
  for (std::int64_t i = 0; i < datasets; ++i) stored.datasets.push_back({i * count, count, -1});
  return stored;
}

std::string dataset_path(const hdf5::File& file, const StoredTensor& tensor, std::size_t dataset) {
  const std::string expert = expert_path(tensor.path(), static_cast<std::int64_t>(dataset));
  const bool whole = expert.empty() || (tensor.datasets.size() == 1 && file.has(tensor.path()));
  return whole ? tensor.path() : expert;
}

bool is_of_checkpoint(const hdf5::File& file) {
  return file.has(integrity_table) && file.has("/", "file_type") && file.text("/", "file_type") == checkpoint_file_type;
}

IntegrityRow row_of(const StoredTensor& tensor) {
  IntegrityRow row;
  row.name = tensor.path();
  row.digest = tensor.digest;
  row.elements = static_cast<std::uint64_t>(tensor.shape.elements());
  row.type = name_of(tensor.type);
  row.axes = tensor.axes;
  row.tied_to = tensor.tied_to;
  row.datasets = tensor.datasets.size();
  std::ranges::copy(tensor.shape.dims(), row.shape.begin());
  return row;
}

namespace {

/// The digest of `count` elements at `offset` of a file; the first one has index `first` in its tensor.
std::uint64_t digest_of(const PosixFile& file, std::int64_t offset, DType type, std::int64_t count,
                        std::int64_t first) {
  constexpr std::int64_t block = std::int64_t{1} << 20;  // bytes; a block stays in the cache until it is digested
  std::vector<std::byte> bytes(static_cast<std::size_t>(std::min(block, count * size_of(type))));
  std::uint64_t sum = 0;
  for (std::int64_t at = 0, n = 0; at < count; at += n) {
    n = std::min(block / size_of(type), count - at);
    file.read(offset + at * size_of(type), bytes.data(), n * size_of(type));
    sum += host_digest(bytes.data(), type, n, first + at);
  }
  return sum;
}

}  // namespace

std::uint64_t digest_in(const PosixFile& file, const StoredTensor& tensor) {
  std::uint64_t sum = 0;
  for (const StoredTensor::Dataset& dataset : tensor.datasets)
    sum += digest_of(file, dataset.offset, tensor.type, dataset.count, dataset.first);
  return sum;
}

std::uint64_t structure_digest(const PosixFile& file, const std::vector<StoredTensor>& tensors) {
  std::vector<std::pair<std::int64_t, std::int64_t>> taken;  // begin and end of each dataset
  for (const StoredTensor& tensor : tensors)
    for (const StoredTensor::Dataset& dataset : tensor.datasets)
      taken.emplace_back(dataset.offset, dataset.offset + dataset.count * size_of(tensor.type));
  std::ranges::sort(taken);
  taken.emplace_back(file.size(), file.size());
  std::uint64_t sum = 0;
  std::int64_t at = 0;
  for (const auto& [begin, end] : taken) {
    if (at < begin) sum += digest_of(file, at, DType::u8, begin - at, at);
    at = std::max(at, end);
  }
  return sum;
}

namespace {

/// The tensors by their datasets. They are found by name, never by listing: HDF5 1.10 frees memory it never had when it
/// lists a damaged group.
std::vector<StoredTensor> opened_tensors(const hdf5::File& file, std::int64_t bytes) {
  std::vector<StoredTensor> tensors;
  std::map<std::string, std::int64_t> datasets;  // datasets per slot
  for (const IntegrityRow& row : integrity_rows(file)) {
    tensors.push_back(tensor_of(file, row, bytes));
    datasets["/" + tensors.back().slot] += std::ssize(tensors.back().datasets);
  }
  for (const auto& [group, count] : datasets)
    if (const std::int64_t links = file.links(group); links != count)
      throw file.unfit(fmt::format("{} holds {} datasets, and its table accounts for {}", group, links, count));
  return tensors;
}

/// The tensors by table and index of places alone: to be trusted only if the structure is as saved.
std::vector<StoredTensor> indexed_tensors(const hdf5::File& file, std::int64_t bytes) {
  const std::vector<std::uint64_t> all_places = file.numbers(integrity_places);
  std::span<const std::uint64_t> places = all_places;
  std::vector<StoredTensor> tensors;
  for (const IntegrityRow& row : integrity_rows(file))
    tensors.push_back(indexed_tensor(file, row, bytes, places));
  if (!places.empty()) throw file.unfit("its table accounts for fewer places than there are");
  return tensors;
}

}  // namespace

std::vector<StoredTensor> tensors_of(const hdf5::File& file, const PosixFile& payload,
                                     const std::optional<std::string>& saved) {
  if (saved) try {
      std::vector<StoredTensor> tensors = indexed_tensors(file, payload.size());
      if (hex(structure_digest(payload, tensors)) == *saved) return tensors;
    } catch (const Error& error) {
      if (error.code() == Exit::environment) throw;
      // Else it is damage, like a digest that does not match: every dataset is opened below.
    }
  return opened_tensors(file, payload.size());
}

namespace {

using Json = nlohmann::json;

Json json_of(const StoredTensor& t) {
  Json datasets = Json::array();
  for (const auto& [first, count, offset] : t.datasets) datasets.push_back(Json::array({first, count, offset}));
  return Json::array({t.slot, t.name, t.shape.dims(), t.type, t.axes, t.digest, t.tied_to, datasets});
}

StoredTensor tensor_from(const Json& json) {
  const std::vector<std::int64_t> dims = json[2];
  StoredTensor t{json[0], json[1], Shape(dims), json[3], json[4], json[5], json[6], {}};
  for (const Json& dataset : json[7]) t.datasets.push_back({dataset[0], dataset[1], dataset[2]});
  return t;
}

}  // namespace

std::string to_bytes(const std::vector<StoredTensor>& tensors) {
  Json all = Json::array();
  for (const StoredTensor& tensor : tensors) all.push_back(json_of(tensor));
  std::string bytes;
  Json::to_msgpack(all, bytes);
  return bytes;
}

std::vector<StoredTensor> tensors_from(const std::string& bytes) {
  std::vector<StoredTensor> tensors;
  for (const Json& json : Json::from_msgpack(bytes)) tensors.push_back(tensor_from(json));
  return tensors;
}

}  // namespace tessera
