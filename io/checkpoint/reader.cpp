#include "io/checkpoint/reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "io/checkpoint/elements.hpp"
#include "io/checkpoint/folder.hpp"
#include "io/checkpoint/sha256.hpp"
#include "io/checkpoint/storage.hpp"
#include "io/hdf5/file.hpp"
#include "kernels/convert/convert.hpp"
#include "kernels/digest/digest.hpp"

namespace tessera {

namespace fs = std::filesystem;

namespace {

constexpr std::int64_t block_elements = std::int64_t{1} << 18;  // stay in the cache from the file to the digest
constexpr std::int64_t elements_ahead = std::int64_t{1} << 21;  // fetched while others are placed

Error unfit(const fs::path& path, const std::string& why) { return {Exit::file, path.string() + ": " + why}; }

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
  StoredTensor tensor{
      row.name.substr(1, slash - 1), row.name.substr(slash + 1), {}, DType::f32, "", row.digest, "", {}};
  const auto elements = static_cast<std::int64_t>(row.elements);
  if (file.has(row.name)) {
    const hdf5::Dataset data = placed(file, row.name, bytes);
    tensor.shape = data.shape;
    tensor.type = data.type;
    tensor.axes = file.text(row.name, "axes");
    if (file.has(row.name, "tied_to")) tensor.tied_to = file.text(row.name, "tied_to");
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
  if (const auto step = step_named((folder / "").parent_path().filename().string());
      step && *step != manifest_.counters.step)
    throw unfit(folder, fmt::format("holds step {}: it was renamed", manifest_.counters.step));
  for (const char* name : {model_file, deck_file})
    if (!manifest_.files.contains(name)) throw unfit(folder / manifest_file, std::string("does not list ") + name);
  for (const auto& [name, bytes] : manifest_.files) {
    if (fs::path(name).filename() != name) throw unfit(folder / manifest_file, "lists a file outside: " + name);
    const std::int64_t size = PosixFile(folder / name, PosixFile::Mode::read).size();
    if (size != bytes)
      throw unfit(folder / name,
                  fmt::format("has {} bytes, and the manifest says {}: it was truncated or changed", size, bytes));
  }
  if (sha256(deck()) != manifest_.deck_sha256) throw unfit(folder / deck_file, "was changed after it was written");
  read_file(model_file);
  if (!weights_only()) read_file(optimizer_file);
  check_digest();
}

std::string Checkpoint::deck() const { return read_text_file(folder_ / deck_file); }

std::string Checkpoint::library_plans() const {
  const hdf5::File file = hdf5::File::open(folder_ / model_file);
  constexpr const char *group = "/provenance", *name = "library_plans";
  return file.has(group, name) ? file.text(group, name) : "";
}

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

namespace {

/// Each consecutive piece of elements [first, first + count) in the file: f(element, offset in the file, bytes).
template <class F>
void each_extent(const StoredTensor& tensor, std::int64_t first, std::int64_t count, const F& f) {
  const std::int64_t size = size_of(tensor.type);
  for (const StoredTensor::Part& part : tensor.parts) {
    const std::int64_t begin = std::max(first, part.first), end = std::min(first + count, part.first + part.count);
    if (begin < end) f(begin, part.offset + (begin - part.first) * size, (end - begin) * size);
  }
}

}  // namespace

void Checkpoint::read(const StoredTensor& tensor, std::int64_t first, std::int64_t count, void* to) const {
  each_extent(tensor, first, count, [&](std::int64_t element, std::int64_t offset, std::int64_t bytes) {
    holding(tensor).read(offset, static_cast<std::byte*>(to) + (element - first) * size_of(tensor.type), bytes);
  });
}

void Checkpoint::expect(const StoredTensor& tensor, std::int64_t first, std::int64_t count) const {
  each_extent(tensor, first, count,
              [&](std::int64_t, std::int64_t offset, std::int64_t bytes) { holding(tensor).expect(offset, bytes); });
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
      sum += host_digest(block.data(), tensor.type, count, first);
    }
    if (sum != tensor.digest)
      wrong.push_back(fmt::format("{}: {} holds other bytes than were saved", (folder_ / file_of(tensor.slot)).string(),
                                  tensor.path()));
  }
  return wrong;
}

namespace {

using Stored = std::map<std::string, const StoredTensor*>;

Stored stored_of(const TensorSource& source) {
  Stored stored;
  for (const StoredTensor& tensor : source.tensors()) stored[tensor.path()] = &tensor;
  return stored;
}

enum class Widening { none, bf16_to_fp32 };

/// Why a tensor cannot take the values of one of its name; empty: it can.
std::string misfit(const StoredTensor& found, const StateTensor& wanted, Widening widening) {
  const std::string path = wanted.path(), axes = axes_of(wanted.role, wanted.shape.rank());
  if (found.shape != wanted.shape)
    return fmt::format("shape: {} is {}, the model has {}", path, found.shape.text(), wanted.shape.text());
  const bool widens = widening == Widening::bf16_to_fp32 && found.type == DType::bf16 && wanted.type == DType::f32;
  if (found.type != wanted.type && !widens)
    return fmt::format("type: {} is {}, the model has {}", path, name_of(found.type), name_of(wanted.type));
  if (found.axes != axes) return fmt::format("axes: {} has {}, the model {}", path, found.axes, axes);
  return "";
}

/// What differs between the tensors wanted and those found, which end without what was wanted; a line each.
std::vector<std::string> differences(Stored& stored, const std::vector<StateTensor>& tensors, Widening widening) {
  std::vector<std::string> lines;
  for (const StateTensor& wanted : tensors) {
    const auto found = stored.find(wanted.path());
    if (found == stored.end()) {
      lines.push_back("missing: " + wanted.path());
      for (const auto& [path, tensor] : stored)
        if (tensor->tied_to == wanted.name) lines.back() += " (there tied to " + path + ")";
      continue;
    }
    if (std::string line = misfit(*found->second, wanted, widening); !line.empty()) lines.push_back(std::move(line));
    stored.erase(found);
  }
  return lines;
}

/// What one rank reads at once.
struct Block {
  std::size_t tensor;  ///< of the state
  const StoredTensor* stored;
  std::int64_t first, count;
  Tensor values;  ///< on the device
};

/// This rank's part of a load, in the order of the state, which is that of the files.
std::vector<Block> blocks_of(const StateDict& state, const Stored& stored) {
  std::vector<Block> blocks;
  for (std::size_t i = 0; i < state.tensors.size(); ++i) {
    const auto from = stored.find(state.tensors[i].path());
    if (from == stored.end()) continue;
    for (const StateRange& range : state.tensors[i].ranges)
      for (std::int64_t at = 0; at < range.values.elements(); at += block_elements) {
        const std::int64_t count = std::min(block_elements, range.values.elements() - at);
        blocks.push_back({i, from->second, range.first + at, count, range.values.flat(at, count)});
      }
  }
  return blocks;
}

/// Moves blocks from a source to the device.
class Loader {
 public:
  Loader(const TensorSource& source, Device& device) : source_(source), device_(device) {}

  /// Digests add up on the device, from what arrived there; in `widened` those of blocks that became another type.
  void load(const Block& block, std::uint64_t* on_device, std::uint64_t& widened) {
    const DType type = block.stored->type, wanted = block.values.type;
    Stream& stream = device_.compute();
    const auto room = [&](std::vector<std::byte>& bytes, DType of) {
      bytes.resize(static_cast<std::size_t>(block.count * size_of(of)));
      return bytes.data();
    };
    std::byte* values = room(read_, type);
    source_.read(*block.stored, block.first, block.count, values);
    if (type != wanted) {
      widened += host_digest(values, type, block.count, block.first);
      convert_elements(room(wide_, wanted), wanted, values, type, block.count);
      values = wide_.data();
    }
    device_.upload(stream, block.values, values);
    if (type == wanted) digest(stream, on_device, block.values, static_cast<std::uint64_t>(block.first));
  }

 private:
  const TensorSource& source_;
  Device& device_;
  std::vector<std::byte> read_, wide_;
};

/// Every tensor of `state` that the source has, its bytes compared with their digest.
void load_tensors(const TensorSource& source, StateDict& state, Device& device, Control& control) {
  Problems problems;
  Stream& stream = device.compute();
  const Stored stored = stored_of(source);
  const std::size_t n = state.tensors.size();
  const Tensor sums = state.digests.flat(0, static_cast<std::int64_t>(n));
  clear(stream, sums);
  std::vector<std::uint64_t> found(n), widened(n, 0);
  try {
    const std::vector<Block> blocks = blocks_of(state, stored);
    Loader loader(source, device);
    auto next = blocks.begin();
    std::int64_t expected = 0;
    for (const Block& block : blocks) {
      for (; next != blocks.end() && expected < elements_ahead; expected += next++->count)
        source.expect(*next->stored, next->first, next->count);
      loader.load(block, sums.as<std::uint64_t>() + block.tensor, widened[block.tensor]);
      expected -= block.count;
    }
  } catch (const Error& error) {
    problems.add(error.code(), error.what());
  }
  control.agree(problems);
  device.download(stream, found.data(), sums);
  for (std::size_t i = 0; i < n; ++i) found[i] += widened[i];
  control.sum(found.data(), static_cast<int>(n));
  for (std::size_t i = 0; i < n && source.has_digests(); ++i)
    if (const auto from = stored.find(state.tensors[i].path());
        from != stored.end() && found[i] != from->second->digest)
      problems.add(Exit::file,
                   fmt::format("{}: {} holds other bytes than were saved", source.name(), state.tensors[i].path()));
  control.agree(problems);
}

}  // namespace

std::vector<std::string> misfits(const TensorSource& source, const std::vector<StateTensor>& wanted, const Fit& fit) {
  Stored stored = stored_of(source);
  std::erase_if(stored, [](const auto& entry) { return entry.second->slot != "model"; });
  std::vector<StateTensor> required;
  for (const StateTensor& tensor : wanted)
    if (stored.contains(tensor.path()) || std::ranges::find(fit.may_miss, tensor.name) == fit.may_miss.end())
      required.push_back(tensor);
  std::vector<std::string> lines = differences(stored, required, Widening::bf16_to_fp32);
  for (const auto& [path, tensor] : stored)
    if (fit.extra == Fit::Extra::refused) lines.push_back("extra: " + path);
  return lines;
}

void load_weights(const TensorSource& source, StateDict& state, Device& device, Control& control) {
  load_tensors(source, state, device, control);
}

namespace {

std::string what_no_run_goes_on_from(const Checkpoint& checkpoint) {
  std::string what = checkpoint.weights_only() ? "weights alone" : "";
  for (const StoredTensor& tensor : checkpoint.tensors())
    if (tensor.type == DType::bf16 && what.empty()) what = tensor.path() + " in bf16";
  if (what.empty()) return what;
  return fmt::format("{}: holds {}, from which no run goes on; checkpoint.init_from starts one", checkpoint.name(),
                     what);
}

}  // namespace

void load(const Checkpoint& checkpoint, StateDict& state, Device& device, Control& control) {
  Problems problems;
  Stored stored = stored_of(checkpoint);
  std::vector<std::string> lines = differences(stored, state.tensors, Widening::none);
  for (const auto& [path, tensor] : stored) lines.push_back("extra: " + path);
  if (const std::string lack = what_no_run_goes_on_from(checkpoint); !lack.empty())
    problems.add(Exit::file, lack);
  else if (!lines.empty())
    problems.add(Exit::file, fmt::format("{}: is of another model: {} differences\n  {}", checkpoint.name(),
                                         lines.size(), fmt::join(lines, "\n  ")));
  control.agree(problems);
  load_tensors(checkpoint, state, device, control);
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

std::string why_not_resumed(const fs::path& folder) {
  try {
    return what_no_run_goes_on_from(Checkpoint(folder));
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
