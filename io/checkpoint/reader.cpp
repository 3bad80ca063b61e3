#include "io/checkpoint/reader.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <iterator>
#include <new>
#include <system_error>

#include "io/checkpoint/folder.hpp"
#include "io/files/access.hpp"
#include "io/files/text_file.hpp"
#include "kernels/base/attempt.hpp"
#include "kernels/digest/digest.hpp"

namespace tessera {

namespace fs = std::filesystem;

namespace {

Error unfit(const fs::path& path, const std::string& why) { return {Exit::file, path.string() + ": " + why}; }

/// What a folder without a manifest is instead of a checkpoint.
std::string what_instead(const fs::path& folder) {
  if (is_run(folder)) return "is a run directory without a saved step: checkpoint.every_steps says when the run saves";
  if (const std::string runs = runs_text(folder); !runs.empty()) return "is no checkpoint: " + runs;
  if (entry_at(folder / hf_config_file) != Entry::none)
    return "is a Hugging Face folder, which has neither digests nor the state of a run: convert it first, by "
           "`tessera checkpoint convert FOLDER DST`; a run starts with its weights by checkpoint.init_from";
  const auto is_weights = [](const fs::path& file) { return file.extension() == ".safetensors"; };
  if (std::ranges::any_of(list_folder(folder).value_or(std::vector<fs::path>()), is_weights))
    return "holds safetensors without the config.json by which a Hugging Face folder says its model: put it there";
  return "holds no manifest.json: it is no checkpoint, or was never finished";
}

/// Runs `work`. What the machine refuses, memory or threads, becomes Error{environment}; any other exception but Error
/// becomes Error{file}.
template <class Work>
void blaming(const fs::path& folder, const Work& work) {
  try {
    work();
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw unreadable(folder, "cannot be read", ENOMEM);
  } catch (const std::system_error& error) {
    throw unreadable(folder, "cannot be read", error.code().value());
  } catch (const std::exception& error) {
    throw unfit(folder, error.what());
  }
}

/// Throws unless the counters and root attributes of a file equal those of the manifest, so that both are of one save.
void check_attributes(const hdf5::File& file, const Manifest& manifest) {
  if (!file.has("/", "complete") || file.get<std::int64_t>("/", "complete") != 1) throw file.unfit("is not complete");
  const std::vector<std::int64_t> version{manifest.format.major, manifest.format.minor};
  if (file.get<std::vector<std::int64_t>>("/", "format_version") != version)
    throw file.unfit("has another format version than the manifest");
  if (file.text("/", "content_digest") != manifest.content_digest)
    throw file.unfit("belongs to another checkpoint: its content_digest differs");
  if (const std::string features = file.text("/", "required_features"); !features.empty())
    throw file.unfit("needs features that this build does not have: " + features);
  StateCounters::visit(manifest.counters, [&](const std::string& path, auto value) {
    const std::size_t slash = path.rfind('/');
    if (file.get<decltype(value)>(path.substr(0, slash), path.c_str() + slash + 1) != value)
      throw file.unfit(path + " differs from the manifest");
  });
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
    open_payload();
    tensors_ = tensors_from(tensors);
    check_digest();
  });
}

void Checkpoint::open_payload() {
  for (const char* name : payload_files)
    if (manifest_.files.contains(name)) files_.emplace_back(folder_ / name, PosixFile::Mode::read_payload);
}

void Checkpoint::read_manifest() {
  if (!list_folder(folder_)) throw unfit(folder_, "is no checkpoint folder");
  if (entry_at(folder_ / manifest_file) == Entry::none) throw unfit(folder_, what_instead(folder_));
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
  open_payload();
  for (std::size_t i = 0; i < files_.size(); ++i) {
    const hdf5::File file = hdf5::File::open(folder_ / payload_files[i]);
    check_attributes(file, manifest_);
    const auto saved = manifest_.structures.find(payload_files[i]);
    std::ranges::move(tensors_of(file, files_[i], saved == manifest_.structures.end() ? std::nullopt
                                                                                      : std::optional(saved->second)),
                      std::back_inserter(tensors_));
  }
  check_digest();
}

std::string Checkpoint::deck() const { return read_text_file(folder_ / deck_file); }

Companions Checkpoint::companions() const {
  Companions found = companions_in(folder_);
  std::erase_if(found, [&](const auto& file) { return !manifest_.files.contains(file.first); });
  return found;
}

std::string Checkpoint::library_plans() const { return attribute("/provenance", "library_plans"); }
std::string Checkpoint::changes() const { return attribute("/provenance", "changes"); }
std::string Checkpoint::git_sha() const { return attribute("/", "git_sha"); }
std::string Checkpoint::libraries() const { return attribute("/provenance", "libraries"); }

std::string Checkpoint::attribute(const char* place, const char* name) const {
  const hdf5::File file = hdf5::File::open(folder_ / model_file);
  return file.has(place, name) ? file.text(place, name) : "";
}

void Checkpoint::check_digest() const {
  ContentDigest content;
  for (const StoredTensor& tensor : tensors_) content.add(tensor.path(), tensor.digest);
  content.add(manifest_.counters);
  if (hex(content.value()) != manifest_.content_digest)
    throw unfit(folder_, "the digests of its tensors do not give its content_digest");
}

void Checkpoint::read(const StoredTensor& tensor, std::int64_t first, std::int64_t count, void* to) const {
  const std::int64_t size = size_of(tensor.type);
  for (const StoredTensor::Dataset& dataset : tensor.datasets) {
    const std::int64_t begin = std::max(first, dataset.first), end = std::min(first + count, dataset.end());
    if (begin < end)
      files_[file_index(tensor.slot)].read(dataset.offset + (begin - dataset.first) * size,
                                           static_cast<std::byte*>(to) + (begin - first) * size, (end - begin) * size);
  }
}

void Checkpoint::read_each(const std::vector<StateTensor>& held, const StoredTensors& stored, const SlabWork& work,
                           On on) const {
  if (!parallel_) return read_payload(windows_of(held, stored), files_, work);
  std::vector<hdf5::File> files;
  for (std::size_t i = 0; i < files_.size(); ++i)
    files.push_back(hdf5::File::open(folder_ / payload_files[i], parallel_));
  ParallelFiles opened{*parallel_, {}};
  for (hdf5::File& file : files) opened.files.push_back(&file);
  move_payload(windows_of(held, stored), stored, hdf5::Parallel::Transfer::read, opened, work, on);
  for (hdf5::File& file : files) file.close();
}

std::vector<std::string> Checkpoint::verify() const {
  std::vector<std::string> wrong;
  for (const auto& [name, digest] : manifest_.structures) {
    const fs::path path = folder_ / name;
    const PosixFile payload(path, PosixFile::Mode::read);
    std::vector<StoredTensor> own;
    std::ranges::copy_if(tensors_, std::back_inserter(own),
                         [&](const StoredTensor& tensor) { return name == file_of(tensor.slot); });
    if (hex(structure_digest(payload, own)) != digest)
      wrong.push_back(fmt::format("{}: holds other {} saved", path.string(),
                                  own.empty() ? "bytes than were" : "structure than was"));
    else if (own.empty())
      continue;  // a derived file has no tensors of its own
    else if (tensors_of(hdf5::File::open(path), payload) != own)
      wrong.push_back(path.string() + ": its datasets are not what its table says");
  }
  for (const StoredTensor& tensor : tensors_)
    if (digest_in(files_[file_index(tensor.slot)], tensor) != tensor.digest)
      wrong.push_back(fmt::format("{}: {} holds other bytes than were saved", (folder_ / file_of(tensor.slot)).string(),
                                  tensor.path()));
  return wrong;
}

namespace {

/// What `ask` says of an opened checkpoint, or why it cannot be opened. Throws Error{environment} if that cannot be
/// known now.
template <class Ask>
std::string reason(const fs::path& folder, const Ask& ask) {
  try {
    return ask(Checkpoint(folder));
  } catch (const Error& error) {
    if (error.code() == Exit::environment) throw;
    return error.what();
  }
}

}  // namespace

std::string why_invalid(const fs::path& folder) {
  return reason(folder, [](const Checkpoint&) { return std::string(); });
}

std::string Checkpoint::reason_not_resumable() const {
  std::string what = weights_only() ? "weights alone" : "";
  for (const StoredTensor& tensor : tensors_)
    if (tensor.slot == "model" && tensor.type == DType::bf16 && what.empty()) what = tensor.path() + " in bf16";
  if (what.empty()) return what;
  return fmt::format("{}: holds {}, from which no run goes on; checkpoint.init_from starts one", name(), what);
}

std::string reason_not_resumable(const fs::path& folder) {
  return reason(folder, [](const Checkpoint& checkpoint) { return checkpoint.reason_not_resumable(); });
}

bool is_run(const fs::path& folder) {
  const bool records = entry_at(folder / "LOCK") != Entry::none || entry_at(folder / "run.json") != Entry::none;
  return records || !step_folders(folder).empty() || !abandoned_folders(folder).empty();
}

std::string runs_text(const fs::path& folder) {
  std::vector<std::string> runs;
  for (const fs::path& entry : list_folder(folder).value_or(std::vector<fs::path>()))
    if (entry_at(entry) == Entry::folder && !step_folders(entry).empty()) runs.push_back(entry.string());
  std::ranges::sort(runs);
  constexpr std::size_t shown = 8;
  const std::string more = runs.size() > shown ? ", ..." : "";
  runs.resize(std::min(runs.size(), shown));
  if (runs.empty()) return "";
  return fmt::format("it holds runs, of which one is to be named: {}{}", fmt::join(runs, ", "), more);
}

Error no_checkpoint(const fs::path& path) {
  const bool there = entry_at(path) != Entry::none;
  return unfit(path, std::string("is neither a checkpoint nor a run directory") + (there ? "" : ": nothing is there"));
}

fs::path find_checkpoint(const fs::path& path) {
  if (entry_at(path) != Entry::folder) throw no_checkpoint(path);
  const std::vector<StepFolder> folders = step_folders(path);
  if (folders.empty()) return path;  // a step folder; Checkpoint refuses anything else
  std::string reasons;
  for (auto folder = folders.rbegin(); folder != folders.rend(); ++folder) {
    const std::string reason = why_invalid(folder->path);
    if (reason.empty()) {
      if (!reasons.empty()) fmt::print(stderr, "checkpoints passed over:{}\n", reasons);
      return folder->path;
    }
    reasons += "\n  " + reason;
  }
  throw unfit(path, "holds no valid checkpoint:" + reasons);
}

}  // namespace tessera
