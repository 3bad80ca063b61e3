#include "io/checkpoint/writer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <random>
#include <vector>

#include "io/checkpoint/branch.hpp"
#include "io/checkpoint/elements.hpp"
#include "io/checkpoint/folder.hpp"
#include "io/checkpoint/storage.hpp"
#include "io/checkpoint/structure_writer.hpp"
#include "io/files/posix_file.hpp"
#include "kernels/base/attempt.hpp"
#include "kernels/convert/convert.hpp"
#include "kernels/digest/digest.hpp"

namespace tessera {

namespace fs = std::filesystem;
using fault::Phase;

namespace {

constexpr const char* names[] = {model_file, optimizer_file};
constexpr std::int64_t step_bytes = std::int64_t{1} << 20;  // stays in the cache from its digest to its copy

std::string nonce() {
  std::random_device device;
  return fmt::format("{:08x}", device());
}

/// However a save ends, the ranks are about it no more.
struct Told {
  Control& control;
  ~Told() { control.about(""); }
};

}  // namespace

struct CheckpointWriter::Save {
  fs::path run, folder;  ///< folder: under its temporary name
  const StateDict& state;
  const Origin& origin;
  std::vector<std::uint64_t> digests, non_finite;
  std::string content_digest;
  std::vector<CheckpointFile> files;  ///< of rank 0
};

void CheckpointWriter::begin(Phase phase) {
  control_.about(fmt::format("a checkpoint's {}", fault::name_of(phase)));
  fault::enter(phase);
}

template <class Work>
void CheckpointWriter::phase(Phase phase, const Work& work) {
  begin(phase);
  Problems problems;
  attempt(problems, work);
  control_.agree(problems);
}

CheckpointWriter::CheckpointWriter(Device& device, Control& control)
    : device_(device), stream_(device.compute()), control_(control) {}

std::string CheckpointWriter::save(const fs::path& run, const StateDict& state, const Origin& origin) {
  Save save{run, {}, state, origin, {}, {}, {}, {}};
  const Told told{control_};
  try {
    require(state.digests.elements() == std::ssize(state.tensors), "CheckpointWriter",
            "the state has no memory for its digests");
    prepare(save);
    phase(Phase::create, [&] { create(save); });
    phase(Phase::guard, [&] { guard(save); });
    phase(Phase::payload, [&] { payload(save); });
    refuse_non_finite(save);
    sum_digests(save);
    phase(Phase::digest, [&] { describe(save); });
    phase(Phase::close, [&] { close(save); });
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

void CheckpointWriter::set_aside(const fs::path& run) {
  const Told told{control_};
  phase(Phase::aside, [&] {
    if (control_.rank() == 0) settle_branch(run);
  });
}

void CheckpointWriter::sum_digests(Save& save) {
  const std::vector<StateTensor>& tensors = save.state.tensors;
  std::vector<std::uint64_t> all(tensors.size());
  device_.download(stream_, all.data(), save.state.digests);
  control_.sum(all.data(), static_cast<int>(all.size()));
  ContentDigest content;
  for (std::size_t i = 0; i < tensors.size(); ++i) content.add(tensors[i].path(), all[i]);
  content.add(save.state.counters);
  save.digests = std::move(all);
  save.content_digest = hex(content.value());
}

/// The folder, and the check that it will fit: before anything is written.
void CheckpointWriter::prepare(Save& save) {
  const std::string mark = control_.broadcast(control_.rank() == 0 ? nonce() : "");
  const fs::path folder = save.run / (step_folder(save.state.counters.step) + ".tmp." + mark);
  phase(Phase::mkdir, [&] {
    if (control_.rank() != 0) return;
    refuse_if_too_big(save.run, save.state.tensors, fmt::format("the checkpoint of step {}", save.state.counters.step));
    fault::strike(folder);
    std::error_code error;
    if (!fs::create_directory(folder, error))
      throw Error(Exit::environment, fmt::format("{}: cannot be made: {}", folder.string(), error.message()));
  });
  save.folder = folder;
}

void CheckpointWriter::create(Save& save) {
  if (control_.rank() != 0) return;
  for (const char* name : names) save.files.emplace_back(save.folder / name, save.state.tensors, save.origin.experts);
  fault::strike(save.folder);
}

/// All that the files may need, so that no later write to them finds the disk full.
void CheckpointWriter::guard(const Save& save) {
  for (const CheckpointFile& out : save.files)
    PosixFile(save.folder / out.name, PosixFile::Mode::write)
        .reserve(room_for(out.name, save.state.tensors, save.origin));
}

/// Every rank its own ranges, at the places that the structure gives them.
void CheckpointWriter::payload(Save& save) {
  clear(stream_, save.state.digests);
  save.non_finite.assign(save.state.tensors.size(), 0);
  StructureWriter structure(save.files, names, save.state.tensors, save.origin.experts, control_);
  std::exception_ptr failure;
  std::vector<PosixFile> files;
  std::optional<WriteBehind> out;
  const auto unless_failed = [&](const auto& work) {
    if (!failure) try {
        work();
      } catch (...) {
        failure = std::current_exception();  // the other ranks wait in next()
      }
  };
  unless_failed([&] {
    for (const char* name : names) files.emplace_back(save.folder / name, PosixFile::Mode::payload);
    out.emplace();
  });
  for (auto placed = structure.next(); !placed.empty(); placed = structure.next())
    unless_failed([&] {
      for (const auto& [file, place] : placed) put(save, place, files[file], *out);
    });
  if (failure) std::rethrow_exception(failure);
  out->drain();
  structure.finish();
  begin(Phase::sync);
  for (PosixFile& file : files) file.sync();
  begin(Phase::vote);
}

/// Digests are taken on the device, before the copy: they cover transfer, host memory and file.
void CheckpointWriter::put(Save& save, const DatasetPlace& place, PosixFile& file, WriteBehind& out) {
  const StateTensor& tensor = save.state.tensors[place.tensor];
  const std::int64_t size = size_of(tensor.type);
  for (const StateRange& range : tensor.ranges) {
    const std::int64_t begin = std::max(range.first, place.first);
    const std::int64_t end = std::min(range.first + range.values.elements(), place.first + place.count);
    for (std::int64_t at = begin; at < end;) {
      const std::span<std::byte> room =
          out.room(file, place.offset + (at - place.first) * size, std::min(step_bytes, (end - at) * size));
      const std::int64_t count = std::ssize(room) / size;
      const Tensor values = range.values.flat(at - range.first, count);
      digest(stream_, save.state.digests.as<std::uint64_t>() + place.tensor, values, static_cast<std::uint64_t>(at));
      device_.download(stream_, room.data(), values);
      save.non_finite[place.tensor] += non_finite(room.data(), tensor.type, count);
      at += count;
    }
  }
}

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

void CheckpointWriter::describe(Save& save) {
  if (control_.rank() != 0) return;
  for (CheckpointFile& out : save.files) {
    write_table(out, save.state.tensors, save.digests);
    tessera::describe(out, save.state.counters, save.content_digest, save.origin);
  }
  fault::strike(save.folder);
}

void CheckpointWriter::close(Save& save) {
  for (CheckpointFile& out : save.files) {
    out.file.close();
    PosixFile(save.folder / out.name, PosixFile::Mode::write).keep_size();
  }
}

void CheckpointWriter::complete(const Save& save) {
  if (control_.rank() != 0) return;
  tessera::complete(save.folder, names, save.state.counters, save.content_digest, save.origin);
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
