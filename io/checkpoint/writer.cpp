#include "io/checkpoint/writer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "io/checkpoint/branch.hpp"
#include "io/checkpoint/elements.hpp"
#include "io/checkpoint/folder.hpp"
#include "io/checkpoint/storage.hpp"
#include "io/files/nonce.hpp"
#include "io/files/posix_file.hpp"
#include "kernels/base/attempt.hpp"
#include "kernels/base/index.hpp"
#include "kernels/convert/convert.hpp"
#include "kernels/digest/digest.hpp"

namespace tessera {

namespace fs = std::filesystem;
using fault::Phase;

namespace {

constexpr const char* names[] = {model_file, optimizer_file};
constexpr std::int64_t step_bytes = std::int64_t{1} << 20;   // stays in the cache from its digest to its copy
constexpr std::int64_t call_bytes = std::int64_t{16} << 20;  // of one call of HDF5

/// However a save ends, the ranks are about it no more.
struct Told {
  Control& control;
  ~Told() { control.about(""); }
};

/// The elements of a dataset that this rank holds, in steps of at most `most` bytes: f(values, canonical index).
template <class F>
void each_step(const StateTensor& tensor, const DatasetPlace& place, std::int64_t most, const F& f) {
  for (const StateRange& range : tensor.ranges) {
    const std::int64_t end = std::min(range.first + range.values.elements(), place.first + place.count);
    for (std::int64_t at = std::max(range.first, place.first), count = 0; at < end; at += count) {
      count = std::min(most / size_of(tensor.type), end - at);
      f(range.values.flat(at - range.first, count), at);
    }
  }
}

}  // namespace

struct CheckpointWriter::Save {
  fs::path run, folder;  ///< folder: under its temporary name
  const StateDict& state;
  const Origin origin;
  std::vector<std::uint64_t> digests{}, non_finite{};
  std::string content_digest{};
  std::vector<CheckpointFile> files{};
  // Of one that is under way: a thread writes this rank's payload, then, on rank 0, the manifest.
  enum class Stage { copy, payload, manifest, committed } stage = Stage::copy;
  Snapshot* snapshot = nullptr;
  std::atomic<bool> done = false;  ///< the stage, on this rank
  Problems problems{};             ///< the thread's, once it is done
  std::jthread thread{};

  Phase thread_phase() const { return stage == Stage::manifest ? Phase::manifest : Phase::payload; }
  template <class Work>
  void in_thread(Stage next, const Work& work) {
    stage = next;
    done = false;
    thread = std::jthread([this, work] {
      attempt(problems, work);
      done = true;
    });
  }
};

void CheckpointWriter::about(Phase phase) { control_.about(fmt::format("a checkpoint's {}", fault::name_of(phase))); }

void CheckpointWriter::enter(Phase phase) {
  about(phase);
  fault::enter(phase);
}

template <class Work>
void CheckpointWriter::phase(Phase phase, const Work& work) {
  enter(phase);
  Problems problems;
  attempt(problems, work);
  control_.agree(problems);
}

CheckpointWriter::CheckpointWriter(Device& device, Control& control, const hdf5::Parallel* parallel,
                                   std::optional<DerivedFile> derived)
    : device_(device),
      stream_(device.compute()),
      control_(control),
      parallel_(parallel),
      derived_(std::move(derived)) {}

CheckpointWriter::~CheckpointWriter() = default;

/// A save that fails leaves nothing behind.
template <class Work>
void CheckpointWriter::guarded(Save& save, const Work& work) {
  const Told told{control_};
  try {
    work();
  } catch (const Error&) {
    save.files.clear();
    std::error_code ignored;
    if (control_.rank() == 0 && !save.folder.empty()) fs::remove_all(save.folder, ignored);
    throw;
  }
}

void CheckpointWriter::make_structure(Save& save) {
  prepare(save);
  phase(Phase::create, [&] { create(save); });
  phase(Phase::guard, [&] { guard(save); });
  lay_out(save);
}

void CheckpointWriter::commit(Save& save) {
  phase(Phase::rename, [&] {
    if (control_.rank() == 0) commit_folder(save.folder, save.run, save.state.counters.step);
  });
  phase(Phase::latest, [&] { announce(save); });
}

std::string CheckpointWriter::save(const fs::path& run, const StateDict& state, const Origin& origin) {
  Save save{run, {}, state, origin};
  guarded(save, [&] {
    require(state.digests.elements() == std::ssize(state.tensors), "CheckpointWriter", "no memory for digests");
    make_structure(save);
    phase(Phase::payload, [&] {
      clear(stream_, state.digests);
      save.non_finite.assign(state.tensors.size(), 0);
      parallel_ ? write_parallel(save) : write_direct(save);
      sync(save);
      enter(Phase::vote);
    });
    refuse_non_finite(save);
    save.digests.resize(state.tensors.size());
    device_.download(stream_, save.digests.data(), state.digests);
    describe(save);
    if (derived_) derive(save);
    phase(Phase::manifest, [&] { complete(save); });
    commit(save);
  });
  return save.content_digest;
}

void CheckpointWriter::begin(const fs::path& run, const StateDict& state, const Origin& origin, Snapshot& snapshot) {
  require(!under_way_ && !parallel_ && !derived_, "CheckpointWriter", "no such save can begin");
  require(state.digests.elements() == std::ssize(state.tensors), "CheckpointWriter", "no memory for digests");
  snapshot.take(state);  // first, so that a GPU copies while files are made
  under_way_ = std::make_unique<Save>(run, fs::path(), snapshot.state(), origin);
  Save& save = *under_way_;
  save.snapshot = &snapshot;
  try {
    guarded(save, [&] { make_structure(save); });
  } catch (const Error&) {
    under_way_.reset();
    throw;
  }
  write_once_copied(save);
}

/// Threads use neither MPI nor a GPU: theirs begins once the copy is there.
void CheckpointWriter::write_once_copied(Save& save) {
  if (save.stage == Save::Stage::copy && save.snapshot->complete())
    save.in_thread(Save::Stage::payload, [this, &save] { write_snapshot(save); });
}

/// By a thread of its own, without HDF5.
void CheckpointWriter::write_snapshot(Save& save) {
  fault::enter(Phase::payload);
  const std::span<const std::uint64_t> taken = save.snapshot->digests();
  save.digests.assign(taken.begin(), taken.end());
  save.digests.resize(save.state.tensors.size());
  save.non_finite.assign(save.state.tensors.size(), 0);
  for (const CheckpointFile& out : save.files) {
    PosixFile file(out.path, PosixFile::Mode::write);
    for (const DatasetPlace& place : out.places)
      each_step(save.state.tensors[place.tensor], place, step_bytes, [&](const Tensor& values, std::int64_t first) {
        if (taken.empty())
          save.digests[place.tensor] += host_digest(values.data, values.type, values.elements(), first);
        save.non_finite[place.tensor] += non_finite(values.data, values.type, values.elements());
        file.write(place.offset + (first - place.first) * size_of(values.type), values.data, values.bytes());
      });
  }
  sync(save);
}

bool CheckpointWriter::ready() {
  Save& save = *under_way_;
  const Told told{control_};
  about(save.thread_phase());
  write_once_copied(save);
  return control_.max(save.done ? 0 : 1) == 0;
}

std::optional<std::string> CheckpointWriter::advance() {
  Save& save = *under_way_;
  try {
    guarded(save, [&] {
      about(save.thread_phase());
      save.snapshot->wait();
      write_once_copied(save);
      save.thread.join();
      control_.agree(save.problems);
      if (save.stage == Save::Stage::payload) {
        refuse_non_finite(save);
        describe(save);
        save.in_thread(Save::Stage::manifest, [this, &save] {
          fault::enter(Phase::manifest);
          complete(save);
        });
      } else {
        save.stage = Save::Stage::committed;
        commit(save);
      }
    });
  } catch (const Error&) {
    under_way_.reset();
    throw;
  }
  if (save.stage != Save::Stage::committed) return std::nullopt;
  return std::exchange(under_way_, nullptr)->content_digest;
}

std::string CheckpointWriter::finish() {
  for (;;)
    if (const std::optional<std::string> digest = advance()) return *digest;
}

void CheckpointWriter::set_aside(const fs::path& run) {
  const Told told{control_};
  phase(Phase::aside, [&] {
    if (control_.rank() == 0) settle_branch(run);
  });
}

void CheckpointWriter::sum_digests(Save& save) {
  const std::vector<StateTensor>& tensors = save.state.tensors;
  control_.sum(save.digests.data(), static_cast<int>(tensors.size()));
  ContentDigest content;
  for (std::size_t i = 0; i < tensors.size(); ++i) content.add(tensors[i].path(), save.digests[i]);
  content.add(save.state.counters);
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

/// By rank 0 alone: until there is room for all, no rank waits for others within HDF5, where a full disk would leave
/// it.
void CheckpointWriter::create(Save& save) {
  for (const char* name : names) save.files.emplace_back(save.folder / name, save.state.tensors, save.origin.experts);
  if (control_.rank() != 0) return;
  for (const CheckpointFile& out : save.files) tessera::create(out);
  fault::strike(save.folder);
}

/// All that the files may need, so that no later write to them finds the disk full.
void CheckpointWriter::guard(const Save& save) {
  if (control_.rank() != 0) return;
  for (const CheckpointFile& out : save.files)
    PosixFile(out.path, PosixFile::Mode::write).reserve(out.room(save.state.tensors, save.origin));
}

void CheckpointWriter::lay_out(Save& save) {
  phase(Phase::structure, [&] {
    if (parallel_) meet();
    if (parallel_ || control_.rank() == 0)
      for (CheckpointFile& out : save.files) {
        tessera::lay_out(out, save.state.tensors, save.origin.experts,
                         parallel_ ? *parallel_ : hdf5::Parallel::alone());
        if (!parallel_) out.close();
      }
    fault::strike(save.folder);
  });
  if (!parallel_) tell_places(save);
}

/// Nobody begins alone what ranks do together within HDF5: in a vote, the others learn of one that stands still.
void CheckpointWriter::meet() { control_.max(0); }

/// Rank 0 tells the others where datasets lie.
void CheckpointWriter::tell_places(Save& save) {
  const auto each = [&](const auto& f) {
    for (CheckpointFile& out : save.files)
      for (DatasetPlace& place : out.places) f(place.offset);
  };
  std::string bytes;
  each([&](const std::int64_t& offset) { bytes.append(reinterpret_cast<const char*>(&offset), sizeof offset); });
  bytes = control_.broadcast(bytes);
  const char* from = bytes.data();
  each([&](std::int64_t& offset) { std::memcpy(&offset, std::exchange(from, from + sizeof offset), sizeof offset); });
}

/// Digests are taken on the device, before the copy: they cover transfer, host memory and file.
void CheckpointWriter::count(Save& save, std::size_t tensor, const Tensor& values, std::int64_t first,
                             std::byte* copy) {
  digest(stream_, save.state.digests.as<std::uint64_t>() + tensor, values, static_cast<std::uint64_t>(first));
  device_.download(stream_, copy, values);
  save.non_finite[tensor] += non_finite(copy, values.type, values.elements());
}

/// Every rank its own ranges, at the places that the structure gives them.
void CheckpointWriter::write_direct(Save& save) {
  std::vector<PosixFile> files;
  for (const CheckpointFile& out : save.files) files.emplace_back(out.path, PosixFile::Mode::payload);
  WriteBehind out;
  for (std::size_t i = 0; i < files.size(); ++i)
    for (const DatasetPlace& place : save.files[i].places) put(save, place, files[i], out);
  out.drain();
}

void CheckpointWriter::put(Save& save, const DatasetPlace& place, PosixFile& file, WriteBehind& out) {
  each_step(save.state.tensors[place.tensor], place, step_bytes, [&](const Tensor& values, std::int64_t first) {
    const std::int64_t size = size_of(values.type);
    for (std::int64_t at = 0; at < values.elements();) {
      const std::span<std::byte> room =
          out.room(file, place.offset + (first + at - place.first) * size, (values.elements() - at) * size);
      const std::int64_t count = std::ssize(room) / size;
      this->count(save, place.tensor, values.flat(at, count), first + at, room.data());
      at += count;
    }
  });
}

namespace {

/// A rank's part of a dataset's payload on its way into HDF5, gathered until a call is worth it.
class ParallelDataset {
 public:
  ParallelDataset(hdf5::File& file, const DatasetPlace& place, std::vector<std::byte>& memory)
      : file_(file), place_(place), memory_(memory) {}

  /// Where to put elements from `first` of the tensor on.
  std::byte* room(const Tensor& values, std::int64_t first) {
    if (used_ + values.bytes() > std::ssize(memory_)) write();
    ranges_.push_back({first - place_.first, values.elements()});
    return memory_.data() + std::exchange(used_, used_ + values.bytes());
  }
  /// What has been gathered, or nothing, as a part in the call of other ranks.
  void write() {
    ++calls_;
    used_ = 0;
    file_.write(place_.path, std::exchange(ranges_, {}), memory_.data());
  }
  void drop() { ranges_.clear(); }
  bool empty() const { return ranges_.empty(); }
  std::int64_t calls() const { return calls_; }

 private:
  hdf5::File& file_;
  const DatasetPlace& place_;
  std::vector<std::byte>& memory_;
  std::vector<hdf5::ElementRange> ranges_;
  std::int64_t used_ = 0, calls_ = 0;
};

}  // namespace

/// Where transfers are collective every rank makes as many calls for a dataset as any may need, the last ones without
/// elements; so does a rank that has failed.
void CheckpointWriter::write_parallel(Save& save) {
  meet();
  const bool collective = parallel_->collective(hdf5::Parallel::Transfer::write);
  std::vector<std::byte> memory;
  std::exception_ptr failure;
  try {
    memory.resize(call_bytes);
  } catch (...) {
    failure = std::current_exception();
  }
  for (CheckpointFile& out : save.files)
    for (const DatasetPlace& place : out.places) {
      const StateTensor& tensor = save.state.tensors[place.tensor];
      const std::int64_t calls =
          collective ? ceil_div(place.count * size_of(tensor.type), call_bytes - step_bytes) : 0;
      ParallelDataset data(*out.file, place, memory);
      if (!failure) try {
          each_step(tensor, place, step_bytes, [&](const Tensor& values, std::int64_t first) {
            std::byte* const room = data.room(values, first);
            count(save, place.tensor, values, first, room);
            fault::strike(out.path);
          });
          if (!data.empty()) data.write();
        } catch (...) {
          failure = std::current_exception();
          data.drop();
        }
      while (data.calls() < calls) try {
          data.write();
        } catch (...) {
          failure = failure ? failure : std::current_exception();
        }
    }
  for (CheckpointFile& out : save.files) out.close();
  if (failure) std::rethrow_exception(failure);
}

/// What this rank wrote is on the disk.
void CheckpointWriter::sync(const Save& save) {
  fault::enter(Phase::sync);
  for (const CheckpointFile& out : save.files) PosixFile(out.path, PosixFile::Mode::write).sync();
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

/// What the files say of all ranks' payload.
void CheckpointWriter::describe(Save& save) {
  sum_digests(save);
  phase(Phase::digest, [&] {
    if (control_.rank() != 0) return;
    for (CheckpointFile& out : save.files)
      tessera::describe(out, save.state.tensors, save.digests, save.state.counters, save.content_digest, save.origin);
    fault::strike(save.folder);
  });
  phase(Phase::close, [&] { close(save); });
}

void CheckpointWriter::close(Save& save) {
  if (control_.rank() != 0) return;
  for (CheckpointFile& out : save.files) {
    out.close();
    PosixFile(out.path, PosixFile::Mode::write).keep_size();
  }
}

void CheckpointWriter::derive(const Save& save) {
  phase(Phase::close, [&] {
    if (control_.rank() == 0) derived_->make(save.folder);
  });
  phase(Phase::close, [&] { derived_->fill(save.folder, control_.rank(), control_.size()); });
}

void CheckpointWriter::complete(const Save& save) {
  if (control_.rank() != 0) return;
  tessera::complete(save.folder, save.files, derived_ ? derived_->name : nullptr, save.state, save.content_digest,
                    save.origin);
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
