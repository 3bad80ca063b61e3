#include "io/checkpoint/writer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <utility>
#include <vector>

#include "io/checkpoint/elements.hpp"
#include "io/checkpoint/folder.hpp"
#include "io/checkpoint/payload.hpp"
#include "io/checkpoint/phase.hpp"
#include "io/checkpoint/room.hpp"
#include "io/checkpoint/storage.hpp"
#include "io/files/fault.hpp"
#include "io/files/nonce.hpp"
#include "io/files/posix_file.hpp"
#include "kernels/base/attempt.hpp"
#include "kernels/convert/convert.hpp"
#include "kernels/digest/digest.hpp"

namespace tessera {

namespace fs = std::filesystem;
using fault::Phase;

/// One save, phase by phase. Collective over the world, unless marked Local.
class CheckpointWriter::Save {
 public:
  /// `snapshot`: the copy to which `state` belongs, for an asynchronous save; null: the save is synchronous.
  Save(const CheckpointWriter& writer, fs::path run, const StateDict& state, Origin origin, Snapshot* snapshot)
      : writer_(writer),
        control_(writer.control_),
        run_(std::move(run)),
        state_(state),
        origin_(std::move(origin)),
        snapshot_(snapshot) {}

  const std::string& content_digest() const { return files_->content_digest; }
  /// Asynchronous saves: the phase of this rank's thread, and whether the thread is done.
  Phase thread_phase() const { return stage_ == Stage::manifest ? Phase::manifest : Phase::payload; }
  bool done() const {
    return thread_.valid() && thread_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }

  /// Runs `work`; if it fails, removes the folder, so that the save leaves nothing behind.
  template <class Work>
  void guarded(const Work& work) {
    const PhaseNote note(control_);
    try {
      work();
    } catch (const Error&) {
      files_.reset();
      std::error_code ignored;
      if (control_.rank() == 0 && !folder_.empty()) fs::remove_all(folder_, ignored);
      throw;
    }
  }

  /// Makes the folder and the files with their datasets. Rank 0 alone begins, until files have their space: in a
  /// collective call of HDF5, a full disk would stop one rank and leave the others waiting.
  void make_structure() {
    require(state_.digests.elements() == std::ssize(state_.tensors), "CheckpointWriter", "no memory for digests");
    make_folder();
    files_.emplace(folder_, std::size(payload_files), state_, origin_);
    on_root(Phase::create, [&] {
      files_->create();
      fault::strike(folder_);
    });
    on_root(Phase::guard, [&] { files_->reserve(); });
    lay_out();
  }

  /// Writes the payload of a state on the device, then the structure that describes it, and commits.
  void write() {
    in_phase(control_, Phase::payload, [&] {
      clear(writer_.device_.compute(), state_.digests);
      begin_sums();
      writer_.parallel_ ? write_by_hdf5() : write_by_system_calls();
      sync();
      enter_phase(control_, Phase::vote);
    });
    refuse_non_finite();
    if (on_gpu()) writer_.device_.download(writer_.device_.compute(), digests_.data(), state_.digests);
    describe();
    if (writer_.derived_) derive();
    in_phase(control_, Phase::manifest, [&] { complete(); });
    commit();
  }

  /// Starts this rank's writing thread once the copy is complete, since threads use neither MPI nor a GPU. Local.
  void write_once_copied() {
    if (stage_ == Stage::copy && snapshot_->complete()) in_thread(Stage::payload, [this] { write_snapshot(); });
  }

  /// Asynchronous saves: waits for the thread and begins the next stage. Returns true once the save is committed.
  bool go_on() {
    note_phase(control_, thread_phase());
    snapshot_->wait();
    write_once_copied();
    control_.agree(thread_.get());
    if (stage_ == Stage::manifest) {
      commit();
      return true;
    }
    refuse_non_finite();
    describe();
    in_thread(Stage::manifest, [this] {
      fault::enter(Phase::manifest);
      complete();
    });
    return false;
  }

 private:
  enum class Stage { copy, payload, manifest };

  template <class Work>
  void on_root(Phase phase, const Work& work) {
    in_phase(control_, phase, [&] {
      if (control_.rank() == 0) work();
    });
  }

  /// Makes the temporary folder, after checking that the disk has room for the checkpoint.
  void make_folder() {
    const std::string mark = control_.broadcast(control_.rank() == 0 ? nonce() : "");
    const fs::path folder = run_ / (step_folder(state_.counters.step) + ".tmp." + mark);
    on_root(Phase::mkdir, [&] {
      refuse_if_too_big(run_, state_.tensors, fmt::format("the checkpoint of step {}", state_.counters.step));
      fault::strike(folder);
      std::error_code error;
      if (!fs::create_directory(folder, error))
        throw Error(Exit::environment, fmt::format("{}: cannot be made: {}", folder.string(), error.message()));
    });
    folder_ = folder;
  }

  void lay_out() {
    const hdf5::Parallel* const parallel = writer_.parallel_;
    in_phase(control_, Phase::structure, [&] {
      // A vote comes before collective calls of HDF5: if a rank stops before it, the others find out, which HDF5 would
      // not tell them.
      if (parallel) control_.max(0);
      if (parallel || control_.rank() == 0) files_->lay_out(parallel ? *parallel : hdf5::Parallel::alone());
      if (!parallel) files_->close();
      fault::strike(folder_);
    });
    if (parallel) return;
    const std::string places = control_.broadcast(control_.rank() == 0 ? to_bytes(files_->tensors) : "");
    if (control_.rank() != 0) files_->tensors = tensors_from(places);
  }

  void begin_sums() {
    digests_.assign(state_.tensors.size(), 0);
    non_finite_.assign(state_.tensors.size(), 0);
  }

  bool on_gpu() const { return writer_.device_.compute().native(); }

  /// Counts values that are not finite in a slab's elements, which are in host memory, and digests them if no GPU does.
  /// By any thread.
  void examine(const Slab& slab, const void* elements) {
    const Tensor& values = slab.values;
    if (!on_gpu())
      std::atomic_ref(digests_[slab.tensor]) += host_digest(elements, values.type, values.elements(), slab.first);
    std::atomic_ref(non_finite_[slab.tensor]) += non_finite(elements, values.type, values.elements());
  }

  /// Copies a slab to `to` in host memory and examines the copy. Where the slab lies on a GPU, that takes the digest
  /// before, so that it covers transfer, host memory and file.
  void copy(const Slab& slab, std::byte* to) {
    const Tensor& values = slab.values;
    if (on_gpu() && !snapshot_) {
      Stream& stream = writer_.device_.compute();
      digest(stream, state_.digests.as<std::uint64_t>() + slab.tensor, values, static_cast<std::uint64_t>(slab.first));
      writer_.device_.download(stream, to, values);
    } else {
      std::memcpy(to, values.data, static_cast<std::size_t>(slab.bytes));
    }
    examine(slab, to);
  }

  /// Writes this rank's payload by the system's own calls. Local.
  void write_by_system_calls() {
    const StoredTensors stored = files_->stored();
    std::vector<PosixFile> files = files_->open(PosixFile::Mode::payload);
    write_payload(windows_of(state_.tensors, stored), files, snapshot_ ? Calls::on_calling_thread : Calls::in_tasks,
                  [this](const Slab& slab, std::byte* to) { copy(slab, to); });
  }

  /// Writes it by HDF5, together with the other ranks.
  void write_by_hdf5() {
    StoredTensors stored;
    std::vector<PosixFile> files;
    std::vector<Window> windows;
    Problems problems;
    attempt(problems, [&] {
      stored = files_->stored();
      files = files_->open(PosixFile::Mode::write);
      windows = windows_of(state_.tensors, stored);
    });
    control_.agree(problems);  // a vote also before collective calls, as in lay_out()
    const auto copy_for_hdf5 = [&](const Slab& slab, std::byte* to) {
      fault::strike(folder_ / file_of(stored[slab.tensor]->slot));
      copy(slab, to);
    };
    attempt(problems, [&] {
      move_payload(windows, stored, hdf5::Parallel::Transfer::write, {*writer_.parallel_, files_->opened(), &files},
                   copy_for_hdf5, on_gpu() ? On::calling_thread : On::tasks);
    });
    files_->close();  // collective: also after a failure
    problems.raise();
  }

  /// Flushes what this rank wrote to the disk. Local.
  void sync() const {
    fault::enter(Phase::sync);
    for (PosixFile& file : files_->open(PosixFile::Mode::write)) file.sync();
  }

  /// Throws if any value is not finite. All ranks see the same sums, so all throw or none.
  void refuse_non_finite() {
    control_.sum(non_finite_.data(), static_cast<int>(non_finite_.size()));
    for (std::size_t i = 0; i < non_finite_.size(); ++i)
      if (non_finite_[i] > 0)
        throw Error(Exit::numerical,
                    fmt::format("the checkpoint of step {} is refused: {} of the {} elements of {} are not finite",
                                state_.counters.step, non_finite_[i], state_.tensors[i].shape.elements(),
                                state_.tensors[i].path()));
  }

  /// Writes the digests of all ranks' payload and the rest of the files' structure.
  void describe() {
    control_.sum(digests_.data(), static_cast<int>(digests_.size()));
    files_->take_digests(digests_);
    on_root(Phase::digest, [&] {
      files_->describe();
      fault::strike(folder_);
    });
    on_root(Phase::close, [&] { files_->finish(); });
  }

  void derive() {
    on_root(Phase::close, [&] { writer_.derived_->make(folder_); });
    in_phase(control_, Phase::close, [&] { writer_.derived_->fill(folder_, control_.rank(), control_.size()); });
  }

  void complete() const {
    if (control_.rank() == 0) files_->complete(writer_.derived_ ? writer_.derived_->name : nullptr);
  }

  /// Renames the folder. `latest` is only a hint: without it the checkpoint is still found.
  void commit() {
    const std::int64_t step = state_.counters.step;
    on_root(Phase::rename, [&] { commit_folder(folder_, run_, step); });
    on_root(Phase::latest, [&] {
      try {
        point_latest(run_, step);
      } catch (const Error& error) {
        fmt::print(stderr, "{}; the newest valid step is found without it\n", error.what());
      }
    });
  }

  template <class Work>
  void in_thread(Stage next, const Work& work) {
    stage_ = next;
    thread_ = std::async(std::launch::async, [work] {
      Problems problems;
      attempt(problems, work);
      return problems;
    });
  }

  /// Writes this rank's part of the snapshot, in a thread. Local.
  void write_snapshot() {
    fault::enter(Phase::payload);
    begin_sums();
    std::ranges::copy(snapshot_->digests(), digests_.begin());
    write_by_system_calls();
    sync();
  }

  const CheckpointWriter& writer_;
  Control& control_;
  const fs::path run_;
  fs::path folder_;  ///< has its temporary name
  const StateDict& state_;
  const Origin origin_;
  std::vector<std::uint64_t> digests_{}, non_finite_{};
  std::optional<CheckpointFiles> files_{};
  // Asynchronous saves: a thread writes this rank's payload and later, on rank 0, the manifest.
  Snapshot* const snapshot_;
  Stage stage_ = Stage::copy;
  std::future<Problems> thread_{};  ///< with what went wrong in its stage; destroyed first, which waits for it
};

CheckpointWriter::CheckpointWriter(Device& device, Control& control, const hdf5::Parallel* parallel,
                                   std::optional<DerivedFile> derived)
    : device_(device), control_(control), parallel_(parallel), derived_(std::move(derived)) {}

CheckpointWriter::~CheckpointWriter() = default;

std::string CheckpointWriter::save(const fs::path& run, const StateDict& state, const Origin& origin) {
  Save save(*this, run, state, origin, nullptr);
  save.guarded([&] {
    save.make_structure();
    save.write();
  });
  return save.content_digest();
}

void CheckpointWriter::start(const fs::path& run, const StateDict& state, const Origin& origin, Snapshot& snapshot) {
  require(!under_way_ && !parallel_ && !derived_, "CheckpointWriter", "no such save can begin");
  snapshot.take(state);  // first, so that a GPU copies while files are made
  auto save = std::make_unique<Save>(*this, run, snapshot.state(), origin, &snapshot);
  save->guarded([&] { save->make_structure(); });
  under_way_ = std::move(save);
  under_way_->write_once_copied();
}

std::optional<std::string> CheckpointWriter::poll() {
  return under_way_ && stage_done() ? next_stage() : std::nullopt;
}

std::optional<std::string> CheckpointWriter::close() {
  std::optional<std::string> digest;
  while (under_way_ && !digest) digest = next_stage();
  return digest;
}

/// Whether the threads of all ranks are done, so that next_stage() would not wait.
bool CheckpointWriter::stage_done() {
  const PhaseNote note(control_, under_way_->thread_phase());
  under_way_->write_once_copied();
  return control_.max(under_way_->done() ? 0 : 1) == 0;
}

/// Waits for the threads and begins the next stage. Returns the content digest once the save is committed.
std::optional<std::string> CheckpointWriter::next_stage() {
  std::unique_ptr<Save> save = std::move(under_way_);
  bool committed = false;
  save->guarded([&] { committed = save->go_on(); });
  if (committed) return save->content_digest();
  under_way_ = std::move(save);
  return std::nullopt;
}

}  // namespace tessera
