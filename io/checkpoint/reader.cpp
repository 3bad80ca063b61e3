#include "io/checkpoint/reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "io/checkpoint/elements.hpp"
#include "io/checkpoint/folder.hpp"
#include "io/checkpoint/index.hpp"
#include "io/checkpoint/read_ahead.hpp"
#include "io/checkpoint/sha256.hpp"
#include "io/checkpoint/storage.hpp"
#include "io/files/posix_file.hpp"
#include "io/files/text_file.hpp"
#include "kernels/base/attempt.hpp"
#include "kernels/base/index.hpp"
#include "kernels/convert/convert.hpp"
#include "kernels/digest/digest.hpp"

namespace tessera {

namespace fs = std::filesystem;

namespace {

constexpr const char* payload_files[] = {model_file, optimizer_file};

Error unfit(const fs::path& path, const std::string& why) { return {Exit::file, path.string() + ": " + why}; }

/// Runs `work`; any other exception than Error, such as bad_alloc from a damaged length, becomes Error{file}.
template <class Work>
void blaming(const fs::path& folder, const Work& work) {
  try {
    work();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw unfit(folder, error.what());
  }
}

}  // namespace

Checkpoint::Checkpoint(const fs::path& folder) : folder_(folder) {
  blaming(folder_, [&] { read_structure(); });
}

Checkpoint::Checkpoint(const fs::path& folder, Control& control, const hdf5::Parallel* parallel)
    : folder_(folder), parallel_(parallel) {
  const auto agreed = [&](const auto& work) {
    Problems problems;
    attempt(problems, [&] { blaming(folder_, work); });
    control.agree(problems);
  };
  const bool root = control.rank() == 0;
  agreed([&] {
    if (root) read_structure();
  });
  const std::string tensors = control.broadcast(root ? to_bytes(tensors_) : "");
  agreed([&] {
    if (root) return;
    read_manifest();
    for (const char* name : payload_files)
      if (manifest_.files.contains(name)) files_.emplace_back(folder_ / name);
    tensors_ = tensors_from(tensors);
    check_digest();
  });
}

void Checkpoint::read_manifest() {
  std::error_code error;
  if (!fs::is_directory(folder_, error)) throw unfit(folder_, "is no checkpoint folder");
  if (!fs::exists(folder_ / manifest_file, error))
    throw unfit(folder_, "holds no manifest.json: it is no checkpoint, or was never finished");
  manifest_ = parse_manifest(read_text_file(folder_ / manifest_file), folder_ / manifest_file);
}

void Checkpoint::read_structure() {
  read_manifest();
  const std::string called = (folder_ / "").parent_path().filename().string();
  const std::optional<AbandonedName> aside = abandoned(called);
  if (const auto step = step_named(aside ? aside->name : called); step && *step != manifest_.counters.step)
    throw unfit(folder_, fmt::format("holds step {}: it was renamed", manifest_.counters.step));
  for (const char* name : {model_file, deck_file})
    if (!manifest_.files.contains(name)) throw unfit(folder_ / manifest_file, std::string("does not list ") + name);
  for (const auto& [name, bytes] : manifest_.files) {
    if (fs::path(name).filename() != name) throw unfit(folder_ / manifest_file, "lists a file outside: " + name);
    const std::int64_t size = PosixFile(folder_ / name, PosixFile::Mode::read).size();
    if (size != bytes)
      throw unfit(folder_ / name,
                  fmt::format("has {} bytes, and the manifest says {}: it was truncated or changed", size, bytes));
  }
  if (sha256(deck()) != manifest_.deck_sha256) throw unfit(folder_ / deck_file, "was changed after it was written");
  read_file(model_file);
  if (!weights_only()) read_file(optimizer_file);
  check_digest();
}

std::string Checkpoint::deck() const { return read_text_file(folder_ / deck_file); }

std::string Checkpoint::tokenizer() const {
  return manifest_.files.contains(tokenizer_file) ? read_text_file(folder_ / tokenizer_file) : "";
}

std::string Checkpoint::library_plans() const { return provenance("library_plans"); }
std::string Checkpoint::changes() const { return provenance("changes"); }

std::string Checkpoint::provenance(const char* name) const {
  const hdf5::File file = hdf5::File::open(folder_ / model_file);
  return file.has("/provenance", name) ? file.text("/provenance", name) : "";
}

void Checkpoint::read_file(const char* name) {
  const hdf5::File file = hdf5::File::open(folder_ / name);
  check_attributes(file, manifest_);
  files_.emplace_back(folder_ / name);
  for (StoredTensor& tensor : tensors_in(file, files_.back())) tensors_.push_back(std::move(tensor));
}

/// By the index, where all that is not payload is as it was saved; else each dataset is asked, and tells what is wrong.
std::vector<StoredTensor> Checkpoint::tensors_in(const hdf5::File& file, const PayloadFile& payload) const {
  const auto saved = manifest_.structures.find(file.path().filename().string());
  if (saved == manifest_.structures.end()) return tensors_of(file, payload.size());
  try {
    std::vector<StoredTensor> tensors = indexed_tensors(file, payload.size());
    if (hex(structure_digest(payload, tensors)) == saved->second) return tensors;
  } catch (const std::exception&) {
    // Damage, as a digest that does not fit.
  }
  return tensors_of(file, payload.size());
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

/// Bytes of a file that come one after another.
struct Checkpoint::Stretch {
  const PayloadFile* file;  ///< null: they do not
  std::int64_t begin, end;

  /// Whether `next` may be read with it, and be as far behind its beginning in memory as in the file.
  bool goes_on_with(const Stretch& next) const {
    constexpr std::int64_t gap = 8;  // what a request's place in a room is rounded up to
    return file && file == next.file && end <= next.begin && next.begin - end < gap;
  }
};

Checkpoint::Stretch Checkpoint::place_of(const ReadRequest& request) const {
  Stretch place{nullptr, 0, 0};
  each_extent(*request.tensor, request.first, request.count,
              [&](std::int64_t, std::int64_t offset, std::int64_t bytes) {
                place = {&holding(*request.tensor), offset, offset + bytes};
              });
  return place.begin % size_of(request.tensor->type) == 0 ? place : Stretch{nullptr, 0, 0};
}

void Checkpoint::read_all(std::span<ReadRequest> requests, std::span<std::byte> room) const {
  while (!requests.empty()) {
    Stretch all = place_of(requests.front());
    std::size_t n = 1;
    for (; n < requests.size(); ++n) {
      const Stretch next = place_of(requests[n]);
      if (!all.goes_on_with(next)) break;
      all.end = next.end;
    }
    const std::span<ReadRequest> together = requests.first(n);
    std::int64_t used = 0;
    if (all.end - all.begin >= worth_pages) {
      std::byte* const values = all.file->read_once(all.begin, all.end - all.begin, room);
      for (ReadRequest& request : together) request.values = values + (place_of(request).begin - all.begin);
      used = values - room.data() + round_up(all.end, page_bytes) - all.begin;
    } else {
      TensorSource::read_all(together, room);
      for (const ReadRequest& request : together) used += bytes_in_room(request);
    }
    requests = requests.subspan(n);
    room = room.subspan(static_cast<std::size_t>(used));
  }
}

int Checkpoint::readers() const {
  return 4;  // a disk wants several requests at once, and ranks share it
}

namespace {

/// What a rank reads of one dataset by HDF5, as many requests at a time as there is room for; where transfers are
/// collective, in as many calls as any rank may need, the last ones without elements. It goes on so when it has failed.
class ParallelReading {
 public:
  ParallelReading(std::span<ReadRequest> requests, const std::function<void(std::size_t, const ReadRequest&)>& take,
                  const hdf5::Parallel& parallel)
      : requests_(requests), take_(take), collective_(parallel.collective(hdf5::Parallel::Transfer::read)) {
    try {
      memory_.resize(call_bytes);
    } catch (...) {
      failure_ = std::current_exception();
    }
  }

  void read(const hdf5::File& file, const StoredTensor& tensor, std::size_t part_index) {
    const StoredTensor::Part& part = tensor.parts[part_index];
    const bool whole = tensor.parts.size() == 1 && file.has(tensor.path());
    const std::string path = whole ? tensor.path() : expert_path(tensor.path(), static_cast<std::int64_t>(part_index));
    const auto is_here = [&] {
      return next_ < requests_.size() && requests_[next_].tensor == &tensor &&
             requests_[next_].first < part.first + part.count;
    };
    const std::int64_t bytes = part.count * size_of(tensor.type);
    std::int64_t calls = collective_ ? ceil_div(bytes, call_bytes - ReadAhead::most_bytes) : 0;
    while (calls-- > 0 || is_here()) try {
        std::vector<hdf5::ElementRange> ranges;
        const std::size_t begin = next_;
        for (std::int64_t used = 0; is_here() && used + requests_[next_].bytes() <= call_bytes; ++next_) {
          const std::int64_t at = std::exchange(used, used + requests_[next_].bytes());
          if (failure_) continue;
          ranges.push_back({requests_[next_].first - part.first, requests_[next_].count});
          requests_[next_].values = memory_.data() + at;
        }
        if (collective_ || !ranges.empty()) file.read(path, ranges, memory_.data());
        for (std::size_t i = begin; i < next_ && !failure_; ++i) take_(i, requests_[i]);
      } catch (...) {
        failure_ = failure_ ? failure_ : std::current_exception();
      }
  }
  void finish() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  static constexpr std::int64_t call_bytes = std::int64_t{16} << 20;
  std::span<ReadRequest> requests_;
  const std::function<void(std::size_t, const ReadRequest&)>& take_;
  bool collective_;
  std::vector<std::byte> memory_;
  std::size_t next_ = 0;  ///< request
  std::exception_ptr failure_;
};

}  // namespace

void Checkpoint::read_each(std::span<const StoredTensor* const> tensors, std::vector<ReadRequest> requests,
                           const std::function<void(std::size_t, const ReadRequest&)>& take) const {
  if (!parallel_) return TensorSource::read_each(tensors, std::move(requests), take);
  ParallelReading reading(requests, take, *parallel_);
  std::map<std::string, hdf5::File> files;
  for (const StoredTensor* tensor : tensors) {
    if (!tensor) continue;
    const std::string name = file_of(tensor->slot);
    auto file = files.find(name);
    if (file == files.end()) file = files.emplace(name, hdf5::File::open(folder_ / name, parallel_)).first;
    for (std::size_t part = 0; part < tensor->parts.size(); ++part) reading.read(file->second, *tensor, part);
  }
  for (auto& [name, file] : files) file.close();
  reading.finish();
}

std::vector<std::string> Checkpoint::verify() const {
  std::vector<std::string> wrong;
  for (const auto& [name, digest] : manifest_.structures) {
    const fs::path path = folder_ / name;
    const PayloadFile payload(path);
    std::vector<StoredTensor> own;
    std::ranges::copy_if(tensors_, std::back_inserter(own),
                         [&](const StoredTensor& tensor) { return name == file_of(tensor.slot); });
    if (hex(structure_digest(payload, own)) != digest)
      wrong.push_back(fmt::format("{}: holds other {} saved", path.string(),
                                  own.empty() ? "bytes than were" : "structure than was"));
    else if (own.empty())
      continue;  // a derived file
    else if (tensors_of(hdf5::File::open(path), payload.size()) != own)
      wrong.push_back(path.string() + ": its datasets are not what its table says");
  }
  for (const StoredTensor& tensor : tensors_)
    if (digest_in(holding(tensor), tensor) != tensor.digest)
      wrong.push_back(fmt::format("{}: {} holds other bytes than were saved", (folder_ / file_of(tensor.slot)).string(),
                                  tensor.path()));
  return wrong;
}

namespace {

/// The source's tensor for each of those wanted, null where it has none of the name.
using Counterparts = std::vector<const StoredTensor*>;

Counterparts counterparts(const TensorSource& source, const std::vector<StateTensor>& wanted) {
  using Name = std::pair<std::string_view, std::string_view>;  // slot and name
  std::map<Name, const StoredTensor*> stored;
  for (const StoredTensor& tensor : source.tensors())
    stored.emplace_hint(stored.end(), Name(tensor.slot, tensor.name), &tensor);
  Counterparts found;
  for (const StateTensor& tensor : wanted) {
    const auto at = stored.find(Name(tensor.slot, tensor.name));
    found.push_back(at == stored.end() ? nullptr : at->second);
  }
  return found;
}

enum class Widening { none, bf16_to_fp32 };

/// Whether a model of shorter sequences takes the first positions of one of longer ones.
bool takes_first_rows(const StoredTensor& found, const StateTensor& wanted) {
  const bool positions = wanted.role == Role::position && found.shape.rank() == 2 && wanted.shape.rank() == 2;
  return positions && found.shape[1] == wanted.shape[1] && found.shape[0] > wanted.shape[0];
}

/// Why a tensor cannot take the values of one of its name; empty: it can.
std::string misfit(const StoredTensor& found, const StateTensor& wanted, Widening widening) {
  if (found.shape != wanted.shape && !(widening == Widening::bf16_to_fp32 && takes_first_rows(found, wanted)))
    return fmt::format("shape: {} is {}, the model has {}", wanted.path(), found.shape.text(), wanted.shape.text());
  const bool widens = widening == Widening::bf16_to_fp32 && found.type == DType::bf16 && wanted.type == DType::f32;
  if (found.type != wanted.type && !widens)
    return fmt::format("type: {} is {}, the model has {}", wanted.path(), name_of(found.type), name_of(wanted.type));
  if (const std::string axes = axes_of(wanted.role, wanted.shape.rank()); found.axes != axes)
    return fmt::format("axes: {} has {}, the model {}", wanted.path(), found.axes, axes);
  return "";
}

std::string missing(const TensorSource& source, const StateTensor& wanted) {
  std::string line = "missing: " + wanted.path();
  for (const StoredTensor& tensor : source.tensors())
    if (tensor.tied_to == wanted.name) line += " (there tied to " + tensor.path() + ")";
  return line;
}

/// What differs between the tensors wanted and their counterparts, a line each.
std::vector<std::string> differences(const TensorSource& source, const std::vector<StateTensor>& wanted,
                                     const Counterparts& found, Widening widening,
                                     const std::vector<std::string>& may_miss) {
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < wanted.size(); ++i)
    if (found[i])
      lines.push_back(misfit(*found[i], wanted[i], widening));
    else if (std::ranges::find(may_miss, wanted[i].name) == may_miss.end())
      lines.push_back(missing(source, wanted[i]));
  std::erase(lines, "");
  return lines;
}

/// The source's tensors that are nobody's counterpart.
Counterparts extra(const TensorSource& source, const Counterparts& found) {
  const std::set<const StoredTensor*> known(found.begin(), found.end());
  Counterparts extra;
  for (const StoredTensor& tensor : source.tensors())
    if (!known.contains(&tensor)) extra.push_back(&tensor);
  return extra;
}

/// What a load does with one read.
struct Placement {
  std::size_t tensor;  ///< of the state
  Tensor values;       ///< on the device
};

/// This rank's part of a load, in the order of the state, which is that of the files.
void plan_reads(const StateDict& state, const Counterparts& found, std::vector<ReadRequest>& reads,
                std::vector<Placement>& placements) {
  for (std::size_t i = 0; i < state.tensors.size(); ++i) {
    if (!found[i]) continue;
    const std::int64_t most = ReadAhead::most_bytes / size_of(found[i]->type);
    // Of other programs' files nothing is known of parts.
    const std::vector<StoredTensor::Part> whole{{0, found[i]->shape.elements(), 0}};
    const std::vector<StoredTensor::Part>& parts = found[i]->parts.empty() ? whole : found[i]->parts;
    for (const StateRange& range : state.tensors[i].ranges)
      for (const StoredTensor::Part& part : parts) {
        const std::int64_t end = std::min(range.first + range.values.elements(), part.first + part.count);
        for (std::int64_t at = std::max(range.first, part.first), count = 0; at < end; at += count) {
          count = std::min(most, end - at);
          reads.push_back({found[i], at, count});
          placements.push_back({i, range.values.flat(at - range.first, count)});
        }
      }
  }
}

/// Moves what was read to the device. Digests add up there, from what arrived; returned are those of values that became
/// another type.
std::vector<std::uint64_t> place(const TensorSource& source, const StateDict& state, const Counterparts& found,
                                 Device& device) {
  std::vector<std::uint64_t> widened(state.tensors.size(), 0);
  std::vector<ReadRequest> reads;
  std::vector<Placement> placements;
  plan_reads(state, found, reads, placements);
  std::vector<std::byte> wide;
  Stream& stream = device.compute();
  source.read_each(found, std::move(reads), [&](std::size_t i, const ReadRequest& read) {
    const auto& [tensor, to] = placements[i];
    const DType type = read.tensor->type;
    const std::byte* from = read.values;
    if (type != to.type) {
      widened[tensor] += host_digest(from, type, read.count, read.first);
      wide.resize(static_cast<std::size_t>(to.bytes()));
      convert_elements(wide.data(), to.type, from, type, read.count);
      from = wide.data();
    }
    device.upload(stream, to, from);
    if (type == to.type)
      digest(stream, state.digests.as<std::uint64_t>() + tensor, to, static_cast<std::uint64_t>(read.first));
  });
  return widened;
}

/// Every tensor of `state` that has a counterpart, its bytes compared with their digest.
void load_tensors(const TensorSource& source, const Counterparts& found, StateDict& state, Device& device,
                  Control& control) {
  Problems problems;
  Stream& stream = device.compute();
  const std::size_t n = state.tensors.size();
  const Tensor sums = state.digests.flat(0, static_cast<std::int64_t>(n));
  clear(stream, sums);
  std::vector<std::uint64_t> arrived(n), widened(n);
  attempt(problems, [&] { widened = place(source, state, found, device); });
  control.agree(problems);
  device.download(stream, arrived.data(), sums);
  for (std::size_t i = 0; i < n; ++i) arrived[i] += widened[i];
  control.sum(arrived.data(), static_cast<int>(n));
  for (std::size_t i = 0; i < n && source.has_digests(); ++i)
    if (found[i] && found[i]->shape == state.tensors[i].shape && arrived[i] != found[i]->digest)
      problems.add(Exit::file,
                   fmt::format("{}: {} holds other bytes than were saved", source.name(), state.tensors[i].path()));
  control.agree(problems);
}

}  // namespace

std::vector<std::string> misfits(const TensorSource& source, const std::vector<StateTensor>& wanted, const Fit& fit) {
  const Counterparts found = counterparts(source, wanted);
  std::vector<std::string> lines = differences(source, wanted, found, Widening::bf16_to_fp32, fit.may_miss);
  for (const StoredTensor* tensor : extra(source, found))
    if (fit.extra == Fit::Extra::refused && tensor->slot == "model") lines.push_back("extra: " + tensor->path());
  return lines;
}

void load_weights(const TensorSource& source, StateDict& state, Device& device, Control& control) {
  load_tensors(source, counterparts(source, state.tensors), state, device, control);
}

namespace {

std::string what_no_run_goes_on_from(const Checkpoint& checkpoint) {
  std::string what = checkpoint.weights_only() ? "weights alone" : "";
  for (const StoredTensor& tensor : checkpoint.tensors())
    if (tensor.slot == "model" && tensor.type == DType::bf16 && what.empty()) what = tensor.path() + " in bf16";
  if (what.empty()) return what;
  return fmt::format("{}: holds {}, from which no run goes on; checkpoint.init_from starts one", checkpoint.name(),
                     what);
}

/// What differs between the counters of a run's rules and those saved, by name and type, a line each.
std::vector<std::string> differences(const std::vector<RuleCounter>& saved, const std::vector<RuleCounter>& wanted) {
  const auto type_of = [](const RuleCounter& counter) {
    return std::holds_alternative<double>(counter.value) ? "f64" : "i64";
  };
  std::vector<std::string> lines;
  for (const RuleCounter& counter : wanted)
    if (const auto found = std::ranges::find(saved, counter.name, &RuleCounter::name); found == saved.end())
      lines.push_back("missing: " + counter.path());
    else if (found->value.index() != counter.value.index())
      lines.push_back(
          fmt::format("type: {} is {}, the optimizer has {}", counter.path(), type_of(*found), type_of(counter)));
  for (const RuleCounter& counter : saved)
    if (std::ranges::find(wanted, counter.name, &RuleCounter::name) == wanted.end())
      lines.push_back("extra: " + counter.path());
  return lines;
}

}  // namespace

void load(const Checkpoint& checkpoint, StateDict& state, Device& device, Control& control) {
  Problems problems;
  const Counterparts found = counterparts(checkpoint, state.tensors);
  std::vector<std::string> lines = differences(checkpoint, state.tensors, found, Widening::none, {});
  for (const StoredTensor* tensor : extra(checkpoint, found)) lines.push_back("extra: " + tensor->path());
  std::ranges::move(differences(checkpoint.manifest().counters.rules, state.counters.rules), std::back_inserter(lines));
  if (const std::string lack = what_no_run_goes_on_from(checkpoint); !lack.empty())
    problems.add(Exit::file, lack);
  else if (!lines.empty())
    problems.add(Exit::file, fmt::format("{}: is of another model: {} differences\n  {}", checkpoint.name(),
                                         lines.size(), fmt::join(lines, "\n  ")));
  control.agree(problems);
  load_tensors(checkpoint, found, state, device, control);
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

std::string reason_not_resumable(const fs::path& folder) {
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
