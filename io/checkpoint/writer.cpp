#include "io/checkpoint/writer.hpp"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "io/checkpoint/folder.hpp"
#include "io/checkpoint/posix_file.hpp"
#include "io/checkpoint/sha256.hpp"
#include "io/checkpoint/storage.hpp"
#include "io/hdf5/file.hpp"
#include "kernels/convert/convert.hpp"
#include "kernels/digest/digest.hpp"

namespace tessera {

namespace fs = std::filesystem;
using fault::Phase;

namespace {

constexpr std::int64_t block_bytes = std::int64_t{16} << 20;

/// A dataset that has its place in a file.
struct Place {
  std::size_t tensor;
  std::int64_t first, count, offset;
};

/// Elements of fp32 and bf16 alike whose exponent bits are all set.
std::uint64_t non_finite(const std::byte* bytes, std::int64_t count, DType type) {
  std::uint64_t found = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint32_t bits = 0;
    std::uint16_t half = 0;
    if (type == DType::f32) std::memcpy(&bits, bytes + 4 * i, 4);
    if (type == DType::bf16) std::memcpy(&half, bytes + 2 * i, 2);
    bits |= static_cast<std::uint32_t>(half) << 16;
    found += (bits & 0x7F800000u) == 0x7F800000u;
  }
  return found;
}

std::string nonce() {
  std::random_device device;
  return fmt::format("{:08x}", device());
}

}  // namespace

struct CheckpointWriter::OpenFile {
  std::string name;
  hdf5::File file;
  std::vector<Place> places;
  std::vector<hdf5::TableRow> rows;
  std::size_t width = 0;
};

struct CheckpointWriter::Save {
  fs::path run, folder;  ///< folder: under its temporary name
  const StateDict& state;
  const Origin& origin;
  std::vector<std::uint64_t> digests, non_finite;
  std::string content_digest;
  std::vector<OpenFile> files;
};

template <class Work>
void CheckpointWriter::phase(Phase phase, const Work& work) {
  Problems problems;
  fault::enter(phase);
  try {
    work();
  } catch (const Error& error) {
    problems.add(error.code(), error.what());
  } catch (const std::exception& error) {
    problems.add(Exit::internal, error.what());
  }
  control_.agree(problems);
}

CheckpointWriter::CheckpointWriter(Device& device, Control& control)
    : device_(device), stream_(device.compute()), control_(control), block_(block_bytes) {}

std::string CheckpointWriter::save(const fs::path& run, const StateDict& state, const Origin& origin) {
  Save save{run, {}, state, origin, {}, {}, {}, {}};
  try {
    digest_all(save);
    prepare(save);
    for (const char* name : {model_file, optimizer_file}) phase(Phase::create, [&] { create(save, name); });
    phase(Phase::guard, [&] { guard(save); });
    phase(Phase::payload, [&] { payload(save); });
    refuse_non_finite(save);
    phase(Phase::digest, [&] { write_tables(save); });
    for (OpenFile& out : save.files) phase(Phase::digest, [&] { describe(save, out); });
    for (OpenFile& out : save.files) phase(Phase::close, [&] { close(out); });
    phase(Phase::manifest, [&] { complete(save); });
    phase(Phase::rename, [&] {
      if (control_.rank() == 0) commit_folder(save.folder, run, state.counters.step);
    });
    phase(Phase::latest, [&] { announce(save); });
  } catch (const Error&) {
    save.files.clear();
    std::error_code ignored;
    if (control_.rank() == 0 && !save.folder.empty()) fs::remove_all(save.folder, ignored);
    throw;
  }
  return save.content_digest;
}

/// On the device, before the first copy: the digests cover transfer, host memory and file.
void CheckpointWriter::digest_all(Save& save) {
  const std::vector<StateTensor>& tensors = save.state.tensors;
  const Tensor& sums = save.state.digests;
  require(sums.elements() == std::ssize(tensors), "CheckpointWriter", "the state has no memory for its digests");
  clear(stream_, sums);
  for (std::size_t i = 0; i < tensors.size(); ++i)
    for (const StateRange& range : tensors[i].ranges)
      digest(stream_, sums.as<std::uint64_t>() + i, range.values, static_cast<std::uint64_t>(range.first));
  std::vector<std::uint64_t> all(static_cast<std::size_t>(sums.elements()));
  device_.download(stream_, all.data(), sums);
  all.resize(tensors.size());
  control_.sum(all.data(), static_cast<int>(all.size()));
  ContentDigest content;
  for (std::size_t i = 0; i < tensors.size(); ++i) content.add(tensors[i].path(), all[i]);
  content.add(save.state.counters);
  save.digests = std::move(all);
  save.non_finite.assign(tensors.size(), 0);
  save.content_digest = hex(content.value());
}

/// Of one save; rank 0's word.
void CheckpointWriter::refuse_if_too_big(const Save& save) const {
  std::int64_t bytes = std::int64_t{1} << 20;  // structure, deck and manifest
  for (const StateTensor& tensor : save.state.tensors) bytes += tensor.shape.elements() * size_of(tensor.type) + 512;
  struct ::statvfs disk {};
  if (::statvfs(save.run.c_str(), &disk) != 0) return;
  const double free = static_cast<double>(disk.f_bavail) * static_cast<double>(disk.f_frsize),
               need = static_cast<double>(bytes);
  if (free < need)
    throw Error(Exit::environment,
                fmt::format("the checkpoint of step {} needs {:.0f} MB, and {:.0f} MB are free in {}; make room",
                            save.state.counters.step, need / 1e6, free / 1e6, save.run.string()));
}

/// The folder, and the check that it will fit: before anything is written.
void CheckpointWriter::prepare(Save& save) {
  const std::string mark = control_.broadcast(control_.rank() == 0 ? nonce() : "");
  const fs::path folder = save.run / (step_folder(save.state.counters.step) + ".tmp." + mark);
  phase(Phase::mkdir, [&] {
    if (control_.rank() != 0) return;
    refuse_if_too_big(save);
    fault::strike(folder);
    std::error_code error;
    if (!fs::create_directory(folder, error))
      throw Error(Exit::environment, fmt::format("{}: cannot be made: {}", folder.string(), error.message()));
  });
  save.folder = folder;
}

/// One file's structure. It is among save.files as soon as it is open, so that all ranks close it together.
void CheckpointWriter::create(Save& save, const char* name) {
  save.files.push_back({name, hdf5::File::create(save.folder / name, control_), {}, {}, 0});
  OpenFile& out = save.files.back();
  for (const char* group : {"/counters", "/schedule", "/data", "/rng", "/integrity", "/provenance"})
    out.file.add_group(group);
  for (std::size_t i = 0; i < save.state.tensors.size(); ++i)
    if (std::strcmp(file_of(save.state.tensors[i].slot), name) == 0) add_tensor(save, i, out);
  out.file.add_table(integrity_table, out.rows.size(), out.width);
  out.file.flush();
  fault::strike(out.file.path());
}

void CheckpointWriter::add_tensor(const Save& save, std::size_t index, OpenFile& out) {
  const StateTensor& tensor = save.state.tensors[index];
  hdf5::File& file = out.file;
  for (std::size_t slash = 0; slash != std::string::npos; slash = tensor.slot.find('/', slash + 1))
    if (slash > 0 && !file.has("/" + tensor.slot.substr(0, slash))) file.add_group("/" + tensor.slot.substr(0, slash));
  if (!file.has("/" + tensor.slot)) file.add_group("/" + tensor.slot);
  for (const StoredPiece& piece : pieces_of(tensor, save.origin.experts)) {
    const hdf5::Dataset made = file.add_dataset(piece.path, piece.shape, tensor.type);
    file.set(piece.path, "axes", axes_of(tensor.role, piece.shape.rank()));
    file.set(piece.path, "role", name_of_role(tensor.role));
    if (!tensor.tied_to.empty() && tensor.slot == "model") file.set(piece.path, "tied_to", tensor.tied_to);
    if (piece.expert >= 0) {
      file.set(piece.path, "canonical", tensor.name);
      file.set(piece.path, "expert", std::int64_t{piece.expert});
    }
    out.places.push_back({index, piece.first, piece.shape.elements(), made.offset});
  }
  out.rows.push_back({tensor.path(), save.digests[index], static_cast<std::uint64_t>(tensor.shape.elements()), 0});
  out.width = std::max(out.width, (tensor.path().size() / 8 + 1) * 8);
}

void CheckpointWriter::guard(Save& save) {
  if (control_.rank() != 0) return;
  for (const OpenFile& out : save.files) {
    PosixFile file(save.folder / out.name, PosixFile::Mode::write);
    std::int64_t end = file.size();
    for (const Place& place : out.places)
      end = std::max(end, place.offset + place.count * size_of(save.state.tensors[place.tensor].type));
    file.reserve(end);
  }
}

/// Every rank its own ranges, at the places that the structure gave them.
void CheckpointWriter::payload(Save& save) {
  for (const OpenFile& out : save.files) {
    PosixFile file(save.folder / out.name, PosixFile::Mode::write);
    for (const Place& place : out.places) {
      const StateTensor& tensor = save.state.tensors[place.tensor];
      const std::int64_t size = size_of(tensor.type), most = block_bytes / size;
      for (const StateRange& range : tensor.ranges) {
        const std::int64_t begin = std::max(range.first, place.first);
        const std::int64_t end = std::min(range.first + range.values.elements(), place.first + place.count);
        for (std::int64_t at = begin; at < end; at += most) {
          const std::int64_t count = std::min(most, end - at);
          device_.download(stream_, block_.data(), range.values.flat(at - range.first, count));
          save.non_finite[place.tensor] += non_finite(block_.data(), count, tensor.type);
          file.write(place.offset + (at - place.first) * size, block_.data(), count * size);
        }
      }
    }
    fault::enter(Phase::sync);
    file.sync();
  }
  fault::enter(Phase::vote);
}

namespace {

/// All that a file says of its save besides tensors and counters.
void write_facts(hdf5::File& file, const StateCounters& counters, const std::string& content_digest,
                 const Origin& origin) {
  const FormatVersion format;
  file.set("/", "file_type", "tessera.checkpoint");
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
  file.set("/provenance", "parent", origin.parent);
  file.set("/provenance", "parent_digest", origin.parent_digest);
}

}  // namespace

/// Every rank sees the same sums, so that all throw or none.
void CheckpointWriter::refuse_non_finite(Save& save) {
  control_.sum(save.non_finite.data(), static_cast<int>(save.non_finite.size()));
  for (std::size_t i = 0; i < save.non_finite.size(); ++i)
    if (save.non_finite[i] > 0)
      throw Error(Exit::numerical,
                  fmt::format("the checkpoint of step {} is refused: {} of the {} elements of {} are not finite",
                              save.state.counters.step, save.non_finite[i], save.state.tensors[i].shape.elements(),
                              save.state.tensors[i].path()));
}

void CheckpointWriter::write_tables(Save& save) {
  if (control_.rank() != 0) return;
  for (OpenFile& out : save.files) out.file.write_table(integrity_table, out.rows, out.width);
}

void CheckpointWriter::describe(Save& save, OpenFile& out) {
  StateCounters::visit(save.state.counters, [&](const std::string& path, auto value) {
    const std::size_t slash = path.rfind('/');
    out.file.set(path.substr(0, slash), path.c_str() + slash + 1, value);
  });
  write_facts(out.file, save.state.counters, save.content_digest, save.origin);
  out.file.set("/", "complete", std::int64_t{1});
  out.file.flush();
  fault::strike(out.file.path());
}

void CheckpointWriter::close(OpenFile& out) {
  out.file.close();
  fault::strike(out.file.path());
}

/// The deck and the manifest: with them the folder is a checkpoint, all of it on the disk.
void CheckpointWriter::complete(Save& save) {
  if (control_.rank() != 0) return;
  replace_text_file(save.folder / deck_file, save.origin.deck);
  Manifest manifest;
  manifest.counters = save.state.counters;
  manifest.content_digest = save.content_digest;
  manifest.run_id = save.origin.run_id;
  manifest.version = save.origin.version;
  manifest.deck_sha256 = sha256(save.origin.deck);
  manifest.model_sha256 = save.origin.model_sha256;
  manifest.corpus_hash = hex(save.origin.corpus_hash);
  manifest.world_size = save.origin.world_size;
  manifest.experts = save.origin.experts;
  for (const char* name : {model_file, optimizer_file, deck_file}) {
    const PosixFile file(save.folder / name, PosixFile::Mode::read);
    PosixFile(save.folder / name, PosixFile::Mode::write).sync();
    manifest.files[name] = file.size();
  }
  replace_text_file(save.folder / manifest_file, to_json(manifest));
  sync_folder(save.folder);
}

/// `latest` is a hint: the checkpoint is there without it.
void CheckpointWriter::announce(const Save& save) {
  if (control_.rank() == 0) try {
      point_latest(save.run, save.state.counters.step);
    } catch (const Error& error) {
      fmt::print(stderr, "{}; the newest valid step is found without it\n", error.what());
    }
}

}  // namespace tessera
