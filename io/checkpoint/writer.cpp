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
#include "io/metrics/run_directory.hpp"
#include "kernels/convert/convert.hpp"
#include "kernels/digest/digest.hpp"

namespace tessera {

namespace fs = std::filesystem;

namespace {

constexpr std::int64_t block_bytes = std::int64_t{16} << 20;

/// A dataset that has its place in a file.
struct Place {
  std::size_t tensor;
  std::int64_t first, count, offset;
};

struct OpenFile {
  std::string name;
  hdf5::File file;
  std::vector<Place> places;
  std::vector<hdf5::TableRow> rows;
  std::size_t width = 0;
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

struct CheckpointWriter::Save {
  fs::path run, folder;  ///< folder: under its temporary name
  const StateDict& state;
  const Origin& origin;
  std::vector<std::uint64_t> digests, non_finite;
  std::string content_digest;
  std::vector<OpenFile> files;
};

template <class Phase>
void CheckpointWriter::phase(const Phase& run) {
  Problems problems;
  try {
    run();
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
    phase([&] { create(save); });
    phase([&] { guard(save); });
    phase([&] { payload(save); });
    finish(save);
    phase([&] { commit(save); });
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

/// The folder, and the check that it will fit: before anything is written.
void CheckpointWriter::prepare(Save& save) {
  const std::string mark = control_.broadcast(control_.rank() == 0 ? nonce() : "");
  const fs::path folder = save.run / (step_folder(save.state.counters.step) + ".tmp." + mark);
  phase([&] {
    if (control_.rank() != 0) return;
    std::int64_t bytes = std::int64_t{1} << 20;  // structure, deck and manifest
    for (const StateTensor& tensor : save.state.tensors) bytes += tensor.shape.elements() * size_of(tensor.type) + 512;
    struct ::statvfs disk {};
    if (::statvfs(save.run.c_str(), &disk) == 0) {
      const double free = static_cast<double>(disk.f_bavail) * static_cast<double>(disk.f_frsize),
                   need = static_cast<double>(bytes);
      if (free < need)
        throw Error(Exit::environment,
                    fmt::format("the checkpoint of step {} needs {:.0f} MB, and {:.0f} MB are free in {}; make room",
                                save.state.counters.step, need / 1e6, free / 1e6, save.run.string()));
    }
    std::error_code error;
    if (!fs::create_directory(folder, error))
      throw Error(Exit::environment, fmt::format("{}: cannot be made: {}", folder.string(), error.message()));
  });
  save.folder = folder;
}

void CheckpointWriter::create(Save& save) {
  for (const char* name : {model_file, optimizer_file}) {
    OpenFile out{name, hdf5::File::create(save.folder / name, control_), {}, {}, 0};
    hdf5::File& file = out.file;
    for (const char* group : {"/counters", "/schedule", "/data", "/rng", "/integrity", "/provenance"})
      file.add_group(group);
    for (std::size_t i = 0; i < save.state.tensors.size(); ++i) {
      const StateTensor& tensor = save.state.tensors[i];
      if (std::strcmp(file_of(tensor.slot), name) != 0) continue;
      for (std::size_t slash = 0; slash != std::string::npos; slash = tensor.slot.find('/', slash + 1))
        if (slash > 0 && !file.has("/" + tensor.slot.substr(0, slash)))
          file.add_group("/" + tensor.slot.substr(0, slash));
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
        out.places.push_back({i, piece.first, piece.shape.elements(), made.offset});
      }
      out.rows.push_back({tensor.path(), save.digests[i], static_cast<std::uint64_t>(tensor.shape.elements()), 0});
      out.width = std::max(out.width, (tensor.path().size() / 8 + 1) * 8);
    }
    file.add_table(integrity_table, out.rows.size(), out.width);
    file.flush();
    save.files.push_back(std::move(out));
  }
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
    file.sync();
  }
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

void CheckpointWriter::finish(Save& save) {
  control_.sum(save.non_finite.data(), static_cast<int>(save.non_finite.size()));
  phase([&] {
    for (std::size_t i = 0; i < save.non_finite.size(); ++i)
      if (save.non_finite[i] > 0)
        throw Error(Exit::numerical,
                    fmt::format("the checkpoint of step {} is refused: {} of the {} elements of {} are not finite",
                                save.state.counters.step, save.non_finite[i], save.state.tensors[i].shape.elements(),
                                save.state.tensors[i].path()));
  });
  phase([&] {
    const Origin& origin = save.origin;
    for (OpenFile& out : save.files) {
      hdf5::File& file = out.file;
      if (control_.rank() == 0) file.write_table(integrity_table, out.rows, out.width);
      StateCounters::visit(save.state.counters, [&](const std::string& path, auto value) {
        const std::size_t slash = path.rfind('/');
        file.set(path.substr(0, slash), path.c_str() + slash + 1, value);
      });
      write_facts(file, save.state.counters, save.content_digest, origin);
      file.set("/", "complete", std::int64_t{1});
      file.close();
    }
  });
}

void CheckpointWriter::commit(Save& save) {
  if (control_.rank() != 0) return;
  Problems problems;
  write_text_file(save.folder / deck_file, save.origin.deck, problems);
  problems.raise();
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
  write_text_file(save.folder / manifest_file, to_json(manifest), problems);
  problems.raise();
  sync_folder(save.folder);
  commit_folder(save.folder, save.run, save.state.counters.step);
}

}  // namespace tessera
