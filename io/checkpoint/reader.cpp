#include "io/checkpoint/reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "io/checkpoint/folder.hpp"
#include "io/checkpoint/sha256.hpp"
#include "io/checkpoint/storage.hpp"
#include "io/hdf5/file.hpp"
#include "kernels/convert/convert.hpp"
#include "kernels/digest/digest.hpp"

namespace tessera {

namespace fs = std::filesystem;

namespace {

constexpr std::int64_t block_elements = std::int64_t{1} << 22;

Error unfit(const fs::path& path, const std::string& why) { return {Exit::file, path.string() + ": " + why}; }

/// The digest of checkpoint.md, section 2, of host memory: for tools, which start no device.
std::uint64_t host_digest(const std::byte* bytes, std::int64_t size, std::int64_t count, std::uint64_t first) {
  std::uint64_t sum = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, bytes + i * size, static_cast<std::size_t>(size));
    sum += mix64(bits ^ (first + static_cast<std::uint64_t>(i) + 1) * 0x9E3779B97F4A7C15u);
  }
  return sum;
}

/// Where the elements of one dataset lie, all of them within the file.
hdf5::Dataset placed(const hdf5::File& file, const std::string& path, std::int64_t bytes) {
  const hdf5::Dataset data = file.dataset(path);
  if (data.offset < 0 || data.offset + data.shape.elements() * size_of(data.type) > bytes)
    throw unfit(file.path(), path + " reaches beyond the file");
  return data;
}

/// The experts of a projection that are stored one by one, put together.
StoredTensor assembled(const hdf5::File& file, StoredTensor tensor, std::int64_t bytes, std::int64_t elements) {
  Shape member;
  std::int64_t found = 0;
  for (std::int64_t e = 0; found < elements; ++e) {
    const std::string path = expert_path(tensor.path(), e);
    if (path.empty() || !file.has(path)) throw unfit(file.path(), "missing: " + (path.empty() ? tensor.path() : path));
    const hdf5::Dataset data = placed(file, path, bytes);
    if (data.shape.rank() != 2 || (e > 0 && (data.shape != member || data.type != tensor.type)))
      throw unfit(file.path(), path + " does not fit the other experts");
    member = data.shape;
    tensor.type = data.type;
    tensor.parts.push_back({found, member.elements(), data.offset});
    found += member.elements();
  }
  tensor.axes = "expert," + file.text(expert_path(tensor.path(), 0), "axes");
  tensor.shape = Shape{std::ssize(tensor.parts), member[0], member[1]};
  return tensor;
}

StoredTensor tensor_of(const hdf5::File& file, const hdf5::TableRow& row, std::int64_t bytes) {
  const std::size_t slash = row.name.rfind('/');
  if (slash == std::string::npos || slash < 2) throw unfit(file.path(), "its table names no tensor: " + row.name);
  StoredTensor tensor{row.name.substr(1, slash - 1), row.name.substr(slash + 1), {}, DType::f32, "", row.digest, {}};
  const auto elements = static_cast<std::int64_t>(row.elements);
  if (file.has(row.name)) {
    const hdf5::Dataset data = placed(file, row.name, bytes);
    tensor.shape = data.shape;
    tensor.type = data.type;
    tensor.axes = file.text(row.name, "axes");
    tensor.parts.push_back({0, data.shape.elements(), data.offset});
  } else {
    tensor = assembled(file, std::move(tensor), bytes, elements);
  }
  if (tensor.shape.elements() != elements || row.non_finite != 0)
    throw unfit(file.path(), row.name + " has another size than its table says");
  return tensor;
}

/// The tensors that a file's table names. Found by name: HDF5 1.10 frees what it never had when it lists a damaged
/// group.
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

/// Counters and root attributes of a file against the manifest: both are of one save.
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

}  // namespace

Checkpoint::Checkpoint(const fs::path& folder) : folder_(folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) throw unfit(folder, "is no checkpoint folder");
  if (!fs::exists(folder / manifest_file, error))
    throw unfit(folder, "holds no manifest.json: it is no checkpoint, or was never finished");
  manifest_ = parse_manifest(read_text_file(folder / manifest_file), folder / manifest_file);
  for (const char* name : {model_file, optimizer_file, deck_file}) {
    const auto listed = manifest_.files.find(name);
    if (listed == manifest_.files.end()) throw unfit(folder / manifest_file, std::string("does not list ") + name);
    const std::int64_t size = PosixFile(folder / name, PosixFile::Mode::read).size();
    if (size != listed->second)
      throw unfit(folder / name, fmt::format("has {} bytes, and the manifest says {}: it was truncated or changed",
                                             size, listed->second));
  }
  if (sha256(deck()) != manifest_.deck_sha256) throw unfit(folder / deck_file, "was changed after it was written");
  for (const char* name : {model_file, optimizer_file}) read_file(name);
  check_digest();
}

std::string Checkpoint::deck() const { return read_text_file(folder_ / deck_file); }

void Checkpoint::read_file(const char* name) {
  const hdf5::File file = hdf5::File::open(folder_ / name);
  check_attributes(file, manifest_);
  files_.emplace_back(folder_ / name, PosixFile::Mode::read);
  for (StoredTensor& tensor : tensors_of(file, files_.back().size())) tensors_.push_back(std::move(tensor));
}

void Checkpoint::check_digest() const {
  ContentDigest content;
  for (const StoredTensor& tensor : tensors_) content.add(tensor.path(), tensor.digest);
  content.add(manifest_.counters);
  if (hex(content.value()) != manifest_.content_digest)
    throw unfit(folder_, "the digests of its tensors do not give its content_digest");
}

void Checkpoint::read(const StoredTensor& tensor, std::int64_t first, std::int64_t count, void* to) const {
  const PosixFile& file = files_[tensor.slot == "model" ? 0 : 1];
  const std::int64_t size = size_of(tensor.type), end = first + count;
  for (const StoredTensor::Part& part : tensor.parts) {
    const std::int64_t begin = std::max(first, part.first), stop = std::min(end, part.first + part.count);
    if (begin >= stop) continue;
    file.read(part.offset + (begin - part.first) * size, static_cast<std::byte*>(to) + (begin - first) * size,
              (stop - begin) * size);
  }
}

std::vector<std::string> Checkpoint::verify() const {
  std::vector<std::string> wrong;
  std::vector<std::byte> block;
  for (const StoredTensor& tensor : tensors_) {
    std::uint64_t sum = 0;
    const std::int64_t size = size_of(tensor.type), elements = tensor.shape.elements();
    for (std::int64_t first = 0; first < elements; first += block_elements) {
      const std::int64_t count = std::min(block_elements, elements - first);
      block.resize(static_cast<std::size_t>(count * size));
      read(tensor, first, count, block.data());
      sum += host_digest(block.data(), size, count, static_cast<std::uint64_t>(first));
    }
    if (sum != tensor.digest)
      wrong.push_back(fmt::format("{}: {} holds other bytes than were saved", (folder_ / file_of(tensor.slot)).string(),
                                  tensor.path()));
  }
  return wrong;
}

namespace {

/// What differs between the state wanted and the state found, a line each.
std::vector<std::string> differences(const Checkpoint& checkpoint, const StateDict& state) {
  std::map<std::string, const StoredTensor*> stored;
  for (const StoredTensor& tensor : checkpoint.tensors()) stored[tensor.path()] = &tensor;
  std::vector<std::string> lines;
  for (const StateTensor& wanted : state.tensors) {
    const auto found = stored.find(wanted.path());
    if (found == stored.end()) {
      lines.push_back("missing: " + wanted.path());
      continue;
    }
    const StoredTensor& tensor = *found->second;
    if (tensor.shape != wanted.shape)
      lines.push_back(
          fmt::format("shape: {} is {}, the model has {}", wanted.path(), tensor.shape.text(), wanted.shape.text()));
    else if (tensor.type != wanted.type)
      lines.push_back(
          fmt::format("type: {} is {}, the model has {}", wanted.path(), name_of(tensor.type), name_of(wanted.type)));
    else if (tensor.axes != axes_of(wanted.role, wanted.shape.rank()))
      lines.push_back(fmt::format("axes: {} has {}, the model {}", wanted.path(), tensor.axes,
                                  axes_of(wanted.role, wanted.shape.rank())));
    stored.erase(found);
  }
  for (const auto& [path, tensor] : stored) lines.push_back("extra: " + path);
  return lines;
}

const StoredTensor& stored_as(const Checkpoint& checkpoint, const std::string& path) {
  return *std::ranges::find(checkpoint.tensors(), path, &StoredTensor::path);
}

}  // namespace

void load(const Checkpoint& checkpoint, StateDict& state, Device& device, Control& control) {
  Problems problems;
  if (const std::vector<std::string> lines = differences(checkpoint, state); !lines.empty()) {
    std::string text =
        fmt::format("{}: is of another model: {} differences", checkpoint.folder().string(), lines.size());
    for (const std::string& line : lines) text += "\n  " + line;
    problems.add(Exit::file, text);
  }
  control.agree(problems);
  Stream& stream = device.compute();
  const auto n = static_cast<std::int64_t>(state.tensors.size());
  const Tensor& sums = state.digests;
  clear(stream, sums);
  std::vector<std::uint64_t> wanted;
  std::vector<std::byte> block;
  try {
    for (std::size_t i = 0; i < state.tensors.size(); ++i) {
      const StateTensor& tensor = state.tensors[i];
      const StoredTensor& stored = stored_as(checkpoint, tensor.path());
      wanted.push_back(stored.digest);
      for (const StateRange& range : tensor.ranges) {
        for (std::int64_t at = 0; at < range.values.elements(); at += block_elements) {
          const std::int64_t count = std::min(block_elements, range.values.elements() - at);
          block.resize(static_cast<std::size_t>(count * size_of(tensor.type)));
          checkpoint.read(stored, range.first + at, count, block.data());
          device.upload(stream, range.values.flat(at, count), block.data());
        }
        digest(stream, sums.as<std::uint64_t>() + i, range.values, static_cast<std::uint64_t>(range.first));
      }
    }
  } catch (const Error& error) {
    problems.add(error.code(), error.what());
  }
  control.agree(problems);
  std::vector<std::uint64_t> found(static_cast<std::size_t>(n));
  device.download(stream, found.data(), sums);
  control.sum(found.data(), static_cast<int>(n));
  for (std::size_t i = 0; i < found.size(); ++i)
    if (found[i] != wanted[i])
      problems.add(Exit::file, fmt::format("{}: {} holds other bytes than were saved", checkpoint.folder().string(),
                                           state.tensors[i].path()));
  control.agree(problems);
  state.counters = checkpoint.manifest().counters;
}

std::string why_invalid(const fs::path& folder) {
  try {
    const Checkpoint checkpoint(folder);
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

fs::path find_checkpoint(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) throw unfit(path, "is neither a checkpoint nor a run directory");
  const std::vector<StepFolder> folders = step_folders(path);
  if (folders.empty()) return path;  // a step folder, or what Checkpoint will refuse
  std::string reasons;
  for (auto folder = folders.rbegin(); folder != folders.rend(); ++folder) {
    const std::string reason = why_invalid(folder->path);
    if (reason.empty()) return folder->path;
    reasons += "\n  " + reason;
  }
  throw unfit(path, "holds no valid checkpoint:" + reasons);
}

}  // namespace tessera
