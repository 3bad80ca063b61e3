#include "io/checkpoint/structure.hpp"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <utility>

#include "io/checkpoint/index.hpp"
#include "io/checkpoint/payload_file.hpp"
#include "io/checkpoint/sha256.hpp"
#include "io/checkpoint/storage.hpp"
#include "io/files/posix_file.hpp"
#include "io/files/text_file.hpp"
#include "kernels/digest/digest.hpp"

namespace tessera {

namespace fs = std::filesystem;

namespace {

/// What a file says that a tensor is tied to: of weights alone.
std::string tie_of(const StateTensor& tensor) { return tensor.slot == "model" ? tensor.tied_to : ""; }

/// The datasets of a tensor; `place`: the first of them.
void add_tensor(hdf5::File& file, const StateTensor& tensor, ExpertWeights experts, DatasetPlace* place) {
  for (const StoredPiece& piece : pieces_of(tensor, experts)) {
    (place++)->offset = file.add_dataset(piece.path, piece.shape, tensor.type).offset;
    file.set(piece.path, "axes", axes_of(tensor.role, piece.shape.rank()));
    file.set(piece.path, "role", name_of_role(tensor.role));
    if (const std::string tie = tie_of(tensor); !tie.empty()) file.set(piece.path, "tied_to", tie);
    if (piece.expert >= 0) {
      file.set(piece.path, "canonical", tensor.name);
      file.set(piece.path, "expert", std::int64_t{piece.expert});
    }
  }
}

/// All that a file says of its save besides tensors and counters.
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

CheckpointFile::CheckpointFile(fs::path made, std::span<const StateTensor> all, ExpertWeights experts)
    : path(std::move(made)) {
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (name() != file_of(all[i].slot)) continue;
    tensors.push_back(i);
    width = std::max(width, (std::max(all[i].path().size(), all[i].tied_to.size()) / 8 + 1) * 8);
    for (const StoredPiece& piece : pieces_of(all[i], experts))
      places.push_back({piece.path, i, piece.first, piece.shape.elements()});
  }
}

std::int64_t CheckpointFile::end(std::span<const StateTensor> all) const {
  std::int64_t end = 1;
  for (const DatasetPlace& place : places)
    end = std::max(end, place.offset + place.count * size_of(all[place.tensor].type));
  return end;
}

std::int64_t CheckpointFile::room(std::span<const StateTensor> all, const Origin& origin) const {
  constexpr std::int64_t header = 2048;  // of a dataset: its object header, attributes, link and row; 700 as measured
  const std::size_t texts =
      origin.deck.size() + origin.command_line.size() + origin.hosts.size() + origin.changes.size() +
      origin.library_plans.size() + origin.tokenizer.size();
  std::int64_t bytes = (std::int64_t{64} << 10) + 2 * static_cast<std::int64_t>(texts);
  for (const DatasetPlace& place : places) bytes += place.count * size_of(all[place.tensor].type) + header;
  return bytes;
}

void CheckpointFile::close() {
  file->close();
  file.reset();
}

void create(const CheckpointFile& out) {
  hdf5::File::create(out.path, &hdf5::Parallel::alone()).close();
}

void lay_out(CheckpointFile& out, std::span<const StateTensor> all, ExpertWeights experts,
             const hdf5::Parallel& parallel) {
  hdf5::File& file = out.file.emplace(hdf5::File::open_to_write(out.path, parallel, std::ssize(out.places)));
  for (const char* group : {"/counters", "/schedule", "/data", "/rng", "/integrity", "/provenance"})
    file.add_groups(group);
  file.add_table(integrity_table, out.tensors.size(), out.width);
  file.add_numbers(integrity_places, out.places.size());
  std::string slot;
  DatasetPlace* place = out.places.data();
  for (const std::size_t i : out.tensors) {
    if (std::exchange(slot, all[i].slot) != all[i].slot) file.add_groups("/" + slot);
    add_tensor(file, all[i], experts, place);
    while (place != out.places.data() + out.places.size() && place->tensor == i) ++place;
  }
}

namespace {

/// The rows of the table and the places that they speak of.
void write_index(CheckpointFile& out, std::span<const StateTensor> all, std::span<const std::uint64_t> digests) {
  std::vector<hdf5::TableRow> rows;
  std::vector<std::uint64_t> places;
  for (const std::size_t i : out.tensors) {
    const StateTensor& tensor = all[i];
    hdf5::TableRow row;
    row.name = tensor.path();
    row.digest = digests[i];
    row.elements = static_cast<std::uint64_t>(tensor.shape.elements());
    row.type = name_of(tensor.type);
    row.axes = axes_of(tensor.role, tensor.shape.rank());
    row.tied_to = tie_of(tensor);
    for (int axis = 0; axis < tensor.shape.rank(); ++axis)
      row.shape[static_cast<std::size_t>(axis)] = static_cast<std::uint64_t>(tensor.shape[axis]);
    for (; places.size() < out.places.size() && out.places[places.size()].tensor == i; ++row.datasets)
      places.push_back(static_cast<std::uint64_t>(out.places[places.size()].offset));
    rows.push_back(std::move(row));
  }
  out.file->write_table(integrity_table, rows, out.width);
  out.file->write_numbers(integrity_places, places);
}

}  // namespace

void describe(CheckpointFile& out, std::span<const StateTensor> all, std::span<const std::uint64_t> digests,
              const StateCounters& counters, const std::string& content_digest, const Origin& origin) {
  hdf5::File& file = out.file.emplace(hdf5::File::open_to_write(out.path, hdf5::Parallel::alone()));
  write_index(out, all, digests);
  StateCounters::visit(counters, [&](const std::string& path, auto value) {
    const std::size_t slash = path.rfind('/');
    file.set(path.substr(0, slash), path.c_str() + slash + 1, value);
  });
  write_facts(file, counters, content_digest, origin);
  file.set("/", "complete", std::int64_t{1});
}

namespace {

/// Of all that is no tensor's in a closed file.
std::string digest_of_structure(const CheckpointFile& out, std::span<const StateTensor> all) {
  std::vector<StoredTensor> payload;
  for (const DatasetPlace& place : out.places) {
    StoredTensor& tensor = payload.emplace_back();
    tensor.type = all[place.tensor].type;
    tensor.parts.push_back({place.first, place.count, place.offset});
  }
  return hex(structure_digest(PayloadFile(out.path), payload));
}

}  // namespace

void complete(const fs::path& folder, std::span<const CheckpointFile> files, const char* derived,
              const StateDict& state, const std::string& content_digest, const Origin& origin) {
  replace_text_file(folder / deck_file, origin.deck);
  if (!origin.tokenizer.empty()) replace_text_file(folder / tokenizer_file, origin.tokenizer);
  Manifest manifest;
  manifest.counters = state.counters;
  manifest.content_digest = content_digest;
  manifest.run_id = origin.run_id;
  manifest.version = origin.version;
  manifest.deck_sha256 = sha256(origin.deck);
  manifest.model_sha256 = origin.model_sha256;
  manifest.corpus_hash = hex(origin.corpus_hash);
  manifest.world_size = origin.world_size;
  manifest.experts = origin.experts;
  for (const CheckpointFile& out : files) manifest.structures[out.name()] = digest_of_structure(out, state.tensors);
  if (derived) manifest.structures[derived] = hex(structure_digest(PayloadFile(folder / derived), {}));
  manifest.files[deck_file] = 0;
  if (!origin.tokenizer.empty()) manifest.files[tokenizer_file] = 0;
  for (const auto& [name, digest] : manifest.structures) manifest.files[name] = 0;
  for (auto& [name, bytes] : manifest.files) {
    PosixFile file(folder / name, PosixFile::Mode::write);
    file.sync();
    bytes = file.size();
  }
  replace_text_file(folder / manifest_file, to_json(manifest));
  sync_folder(folder);
}

void refuse_if_too_big(const fs::path& folder, std::span<const StateTensor> tensors, const std::string& what) {
  std::int64_t bytes = std::int64_t{1} << 20;  // structure, deck and manifest
  for (const StateTensor& tensor : tensors) bytes += tensor.shape.elements() * size_of(tensor.type) + 512;
  struct ::statvfs disk {};
  if (::statvfs(folder.c_str(), &disk) != 0) return;
  const double free = static_cast<double>(disk.f_bavail) * static_cast<double>(disk.f_frsize),
               need = static_cast<double>(bytes);
  if (free < need)
    throw Error(Exit::environment, fmt::format("{} needs {:.0f} MB, and {:.0f} MB are free in {}; make room", what,
                                               need / 1e6, free / 1e6, folder.string()));
}

}  // namespace tessera
