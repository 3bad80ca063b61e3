#include "io/checkpoint/writer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "io/checkpoint/elements.hpp"
#include "io/checkpoint/folder.hpp"
#include "io/checkpoint/posix_file.hpp"
#include "io/checkpoint/storage.hpp"
#include "io/checkpoint/structure.hpp"
#include "kernels/convert/convert.hpp"
#include "kernels/digest/digest.hpp"

namespace tessera {

namespace fs = std::filesystem;
using fault::Phase;

namespace {

constexpr std::int64_t block_bytes = std::int64_t{1} << 20;  // stays in the cache from the digest to the file

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
  std::vector<CheckpointFile> files;
};

void CheckpointWriter::begin(Phase phase) {
  control_.about(fmt::format("a checkpoint's {}", fault::name_of(phase)));
  fault::enter(phase);
}

template <class Work>
void CheckpointWriter::vote(const Work& work) {
  Problems problems;
  try {
    work();
  } catch (const Error& error) {
    problems.add(error.code(), error.what());
  } catch (const std::exception& error) {
    problems.add(Exit::internal, error.what());
  }
  control_.agree(problems);
}

template <class Work>
void CheckpointWriter::phase(Phase phase, const Work& work) {
  begin(phase);
  vote(work);
}

template <class Work>
void CheckpointWriter::together(Phase phase, const Work& work) {
  begin(phase);
  control_.agree({});
  vote([&] { control_.bounded(work); });
}

CheckpointWriter::CheckpointWriter(Device& device, Control& control)
    : device_(device), stream_(device.compute()), control_(control), block_(block_bytes) {}

std::string CheckpointWriter::save(const fs::path& run, const StateDict& state, const Origin& origin) {
  Save save{run, {}, state, origin, {}, {}, {}, {}};
  try {
    require(state.digests.elements() == std::ssize(state.tensors), "CheckpointWriter",
            "the state has no memory for its digests");
    prepare(save);
    for (const char* name : {model_file, optimizer_file}) create(save, name);
    phase(Phase::guard, [&] { guard(save); });
    phase(Phase::payload, [&] { payload(save); });
    refuse_non_finite(save);
    sum_digests(save);
    phase(Phase::digest, [&] { write_tables(save); });
    for (CheckpointFile& out : save.files) together(Phase::digest, [&] { describe(save, out); });
    for (CheckpointFile& out : save.files) together(Phase::close, [&] { close(out); });
    phase(Phase::manifest, [&] { complete(save); });
    phase(Phase::rename, [&] {
      if (control_.rank() == 0) commit_folder(save.folder, run, state.counters.step);
    });
    phase(Phase::latest, [&] { announce(save); });
    control_.about("");
  } catch (const Error&) {
    control_.bounded([&] { save.files.clear(); });
    control_.about("");
    std::error_code ignored;
    if (control_.rank() == 0 && !save.folder.empty()) fs::remove_all(save.folder, ignored);
    throw;
  }
  return save.content_digest;
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

/// One file's structure. The file is among save.files as soon as it is open, so that all ranks close it together. Its
/// space is taken before any rank writes: HDF5's collectives never end when the disk is full.
void CheckpointWriter::create(Save& save, const char* name) {
  const std::span<const StateTensor> tensors = save.state.tensors;
  const fs::path path = save.folder / name;
  const std::int64_t room = room_for(name, tensors, save.origin);
  // Before the file is HDF5's as well: closing one that has no room does not end either.
  phase(Phase::create, [&] {
    if (control_.rank() != 0) return;
    const fs::path trial = path.string() + ".room";
    PosixFile(trial, PosixFile::Mode::replace).reserve(room);
    fs::remove(trial);
  });
  together(Phase::create, [&] { save.files.push_back({name, hdf5::File::create(path, control_), {}, {}, 0}); });
  phase(Phase::create, [&] {
    if (control_.rank() == 0) PosixFile(path, PosixFile::Mode::write).reserve(room);
  });
  together(Phase::create, [&] {
    lay_out(save.files.back(), tensors, save.origin.experts);
    fault::strike(path);
  });
}

/// Exactly now, and for the attributes that follow the payload.
void CheckpointWriter::guard(Save& save) {
  if (control_.rank() != 0) return;
  for (const CheckpointFile& out : save.files)
    PosixFile(save.folder / out.name, PosixFile::Mode::write)
        .reserve(out.end(save.state.tensors) + room_for_facts(save.origin));
}

/// Every rank its own ranges, at the places that the structure gave them. Digests are taken on the device, before the
/// copy: they cover transfer, host memory and file.
void CheckpointWriter::payload(Save& save) {
  auto* const digests = save.state.digests.as<std::uint64_t>();
  clear(stream_, save.state.digests);
  save.non_finite.assign(save.state.tensors.size(), 0);
  for (const CheckpointFile& out : save.files) {
    PosixFile file(save.folder / out.name, PosixFile::Mode::write);
    for (const DatasetPlace& place : out.places) {
      const StateTensor& tensor = save.state.tensors[place.tensor];
      const std::int64_t size = size_of(tensor.type), most = block_bytes / size;
      for (const StateRange& range : tensor.ranges) {
        const std::int64_t begin = std::max(range.first, place.first);
        const std::int64_t end = std::min(range.first + range.values.elements(), place.first + place.count);
        for (std::int64_t at = begin; at < end; at += most) {
          const std::int64_t count = std::min(most, end - at);
          const Tensor values = range.values.flat(at - range.first, count);
          digest(stream_, digests + place.tensor, values, static_cast<std::uint64_t>(at));
          device_.download(stream_, block_.data(), values);
          save.non_finite[place.tensor] += non_finite(block_.data(), tensor.type, count);
          file.write(place.offset + (at - place.first) * size, block_.data(), count * size);
        }
      }
    }
    begin(Phase::sync);
    file.sync();
  }
  begin(Phase::vote);
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

void CheckpointWriter::write_tables(Save& save) {
  if (control_.rank() == 0)
    for (CheckpointFile& out : save.files) write_table(out, save.state.tensors, save.digests);
  fault::strike(save.folder);
}

void CheckpointWriter::describe(Save& save, CheckpointFile& out) {
  tessera::describe(out, save.state.counters, save.content_digest, save.origin);
}

void CheckpointWriter::close(CheckpointFile& out) {
  out.file.close();
  fault::strike(out.file.path());
}

void CheckpointWriter::complete(const Save& save) {
  if (control_.rank() != 0) return;
  constexpr const char* names[] = {model_file, optimizer_file};
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
