#include "io/checkpoint/structure.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "io/checkpoint/integrity_table.hpp"
#include "io/checkpoint/storage.hpp"
#include "io/files/posix_file.hpp"
#include "io/files/text_file.hpp"
#include "kernels/base/attempt.hpp"
#include "kernels/digest/digest.hpp"

namespace tessera {

namespace fs = std::filesystem;

namespace {

/// Adds a tensor's datasets to a file, and records their places in `stored`.
void add_tensor(hdf5::File& file, const StateTensor& held, ExpertWeights experts, StoredTensor& stored) {
  const bool apart = by_expert(held, experts);
  const Shape shape = apart ? Shape{held.shape[1], held.shape[2]} : held.shape;
  for (std::size_t dataset = 0; dataset < stored.datasets.size(); ++dataset) {
    const auto expert = static_cast<std::int64_t>(dataset);
    const std::string path = apart ? expert_path(held.path(), expert) : held.path();
    stored.datasets[dataset].offset = file.add_dataset(path, shape, held.type).offset;
    file.set(path, "axes", axes_of(held.role, shape.rank()));
    file.set(path, "role", name_of_role(held.role));
    if (!stored.tied_to.empty()) file.set(path, "tied_to", stored.tied_to);
    if (!apart) continue;
    file.set(path, "canonical", held.name);
    file.set(path, "expert", expert);
  }
}

/// Writes the attributes that describe a save: all that a file says besides tensors and counters.
void write_facts(hdf5::File& file, const StateCounters& counters, const std::string& content_digest,
                 const Origin& origin) {
  const FormatVersion format;
  file.set("/", "file_type", checkpoint_file_type);
  file.set("/", "format_version", std::vector<std::int64_t>{format.major, format.minor});
  file.set("/", "required_features", "");
  file.set("/", "software", "tessera");
  file.set("/", "version", origin.version);
  file.set("/", "git_sha", origin.git_sha);
  file.set("/", "step", counters.step);
  file.set("/", "tokens", counters.tokens);
  file.set("/", "run_id", origin.run_id);
  file.set("/", "world_size", std::int64_t{origin.world_size});
  file.set("/", "mesh", origin.mesh);
  file.set("/", "deck_sha256", sha256(origin.deck));
  file.set("/", "model_sha256", origin.model_sha256);
  file.set("/", "content_digest", content_digest);
  const OptimizerConfig& optimizer = origin.optimizer;
  file.set("/schedule", "name", name_of(optimizer.schedule));
  file.set("/schedule", "steps", origin.steps);
  file.set("/schedule", "warmup_steps", optimizer.warmup_steps);
  file.set("/schedule", "decay_steps", optimizer.decay_steps);
  file.set("/schedule", "lr", optimizer.lr);
  file.set("/schedule", "min_lr", optimizer.min_lr);
  file.set("/data", "corpus_hash", hex(origin.corpus_hash));
  file.set("/rng", "algorithm", "Philox4x32-10, keyed by seed, purpose, step and index");
  file.set("/rng", "counters", std::vector<std::int64_t>{counters.step, counters.next_sample});
  file.set("/provenance", "deck", origin.deck);
  file.set("/provenance", "command_line", origin.command_line);
  file.set("/provenance", "hosts", origin.hosts);
  file.set("/provenance", "libraries", origin.libraries);
  file.set("/provenance", "library_plans", origin.library_plans);
  file.set("/provenance", "changes", origin.changes);
  file.set("/provenance", "parent", origin.parent);
  file.set("/provenance", "parent_digest", origin.parent_digest);
}

}  // namespace

CheckpointFiles::CheckpointFiles(fs::path folder, std::size_t count, const StateDict& state, const Origin& origin)
    : folder_(std::move(folder)), state_(state), origin_(origin) {
  for (std::size_t i = 0; i < count; ++i) files_.push_back({folder_ / payload_files[i], {}});
  for (const StateTensor& held : state.tensors) {
    const StoredTensor& stored = tensors.emplace_back(planned(held, origin.experts));
    File& file = files_.at(file_index(held.slot));
    file.tensors.push_back(tensors.size() - 1);
    file.datasets += stored.datasets.size();
    file.width = std::max(file.width, (std::max(held.path().size(), held.tied_to.size()) / 8 + 1) * 8);
  }
}

std::vector<PosixFile> CheckpointFiles::open(PosixFile::Mode mode) const {
  std::vector<PosixFile> files;
  for (const File& file : files_) files.emplace_back(file.path, mode);
  return files;
}

std::vector<hdf5::File*> CheckpointFiles::opened() {
  std::vector<hdf5::File*> files;
  for (File& file : files_) files.push_back(&*file.open);
  return files;
}

StoredTensors CheckpointFiles::stored() const {
  StoredTensors stored;
  for (const StoredTensor& tensor : tensors) stored.push_back(&tensor);
  return stored;
}

void CheckpointFiles::create() const {
  for (const File& file : files_) hdf5::File::create(file.path, &hdf5::Parallel::alone()).close();
}

void CheckpointFiles::reserve() const {
  constexpr std::int64_t header = 2048;  // bytes per dataset: object header, attributes, link and row; 700 as measured
  const std::size_t texts = origin_.deck.size() + origin_.command_line.size() + origin_.hosts.size() +
                            origin_.changes.size() + origin_.library_plans.size() + bytes_of(origin_.companions);
  for (const File& file : files_) {
    std::int64_t bytes = (std::int64_t{64} << 10) + 2 * static_cast<std::int64_t>(texts) +
                         static_cast<std::int64_t>(file.datasets) * header;
    for (const std::size_t i : file.tensors) bytes += tensors[i].shape.elements() * size_of(tensors[i].type);
    PosixFile(file.path, PosixFile::Mode::write).reserve(bytes);
  }
}

void CheckpointFiles::lay_out(const hdf5::Parallel& parallel) {
  for (File& file : files_) {
    const auto datasets = static_cast<std::int64_t>(file.datasets);
    hdf5::File& out = file.open.emplace(hdf5::File::open_to_write(file.path, parallel, datasets));
    for (const char* group : {"/counters", "/schedule", "/data", "/rng", "/integrity", "/provenance"})
      out.add_groups(group);
    add_integrity_table(out, file.tensors.size(), file.width);
    out.add_numbers(integrity_places, file.datasets);
    std::string slot;
    for (const std::size_t i : file.tensors) {
      if (std::exchange(slot, tensors[i].slot) != tensors[i].slot) out.add_groups("/" + slot);
      add_tensor(out, state_.tensors[i], origin_.experts, tensors[i]);
    }
  }
}

/// Closes all files even if one fails, since the other ranks do so too.
void CheckpointFiles::close() {
  Problems problems;
  for (File& file : files_) {
    if (file.open) attempt(problems, [&] { file.open->close(); });
    file.open.reset();
  }
  problems.raise();
}

void CheckpointFiles::take_digests(std::span<const std::uint64_t> digests) {
  ContentDigest content;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].digest = digests[i];
    content.add(tensors[i].path(), digests[i]);
  }
  content.add(state_.counters);
  content_digest = hex(content.value());
}

void CheckpointFiles::describe() {
  for (File& file : files_) {
    hdf5::File& out = file.open.emplace(hdf5::File::open_to_write(file.path, hdf5::Parallel::alone()));
    std::vector<IntegrityRow> rows;
    std::vector<std::uint64_t> places;
    for (const std::size_t i : file.tensors) {
      rows.push_back(row_of(tensors[i]));
      for (const StoredTensor::Dataset& dataset : tensors[i].datasets)
        places.push_back(static_cast<std::uint64_t>(dataset.offset));
    }
    write_integrity_rows(out, rows, file.width);
    out.write_numbers(integrity_places, places);
    StateCounters::visit(state_.counters, [&](const std::string& path, auto value) {
      const std::size_t slash = path.rfind('/');
      out.set(path.substr(0, slash), path.c_str() + slash + 1, value);
    });
    write_facts(out, state_.counters, content_digest, origin_);
    out.set("/", "complete", std::int64_t{1});
  }
}

void CheckpointFiles::finish() {
  close();
  for (const File& file : files_) PosixFile(file.path, PosixFile::Mode::write).keep_size();
}

/// The digest of all bytes of a file that belong to no tensor.
std::string CheckpointFiles::structure_of(const File& file) const {
  std::vector<StoredTensor> own;
  for (const std::size_t i : file.tensors) own.push_back(tensors[i]);
  return hex(structure_digest(PosixFile(file.path, PosixFile::Mode::read), own));
}

void CheckpointFiles::complete(const char* derived) const {
  replace_text_file(folder_ / deck_file, origin_.deck);
  Manifest manifest;
  manifest.counters = state_.counters;
  manifest.content_digest = content_digest;
  manifest.run_id = origin_.run_id;
  manifest.version = origin_.version;
  manifest.deck_sha256 = sha256(origin_.deck);
  manifest.model_sha256 = origin_.model_sha256;
  manifest.corpus_hash = hex(origin_.corpus_hash);
  manifest.world_size = origin_.world_size;
  manifest.experts = origin_.experts;
  manifest.files[deck_file] = 0;
  for (const auto& [name, bytes] : origin_.companions) {
    replace_text_file(folder_ / name, bytes);
    manifest.files[name] = 0;
  }
  for (const File& file : files_) manifest.structures[file.path.filename().string()] = structure_of(file);
  if (derived) manifest.structures[derived] = structure_of({folder_ / derived, {}});
  for (const auto& [name, digest] : manifest.structures) manifest.files[name] = 0;
  for (auto& [name, bytes] : manifest.files) {
    PosixFile file(folder_ / name, PosixFile::Mode::write);
    file.sync();
    bytes = file.size();
  }
  replace_text_file(folder_ / manifest_file, to_json(manifest));
  sync_folder(folder_);
}

}  // namespace tessera
