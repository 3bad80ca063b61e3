#pragma once
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/comm/control.hpp"
#include "core/device/device.hpp"
#include "core/state/state_dict.hpp"
#include "io/checkpoint/snapshot.hpp"
#include "io/checkpoint/structure.hpp"
#include "io/checkpoint/write_behind.hpp"
#include "io/files/fault.hpp"
#include "io/hdf5/parallel.hpp"

namespace tessera {

/// A file that all ranks make of a checkpoint's model.h5, in its folder.
struct DerivedFile {
  const char* name;
  std::function<void(const std::filesystem::path& folder)> make;  ///< by rank 0: with its space, without content
  /// By each rank its part, synced.
  std::function<void(const std::filesystem::path& folder, int rank, int ranks)> fill;
};

/// Writes checkpoints of one run, complete or not at all, in the form of FORMAT.md. One a rank.
class CheckpointWriter {
 public:
  /// With `parallel` all ranks make datasets and write payload by HDF5 and MPI-IO; null: rank 0 makes datasets, and
  /// payload is written by the system's own calls. The files are the same.
  CheckpointWriter(Device& device, Control& control, const hdf5::Parallel* parallel = nullptr,
                   std::optional<DerivedFile> derived = {});
  /// Waits for what is under way, which is no checkpoint then.
  ~CheckpointWriter();

  /// Saves `state` as step_N of `run`; returns its content digest. Waits for the device and the disk, and takes 16 MiB
  /// of the host's memory meanwhile. When any rank fails, all throw the same Error, nothing of this save remains and
  /// every older checkpoint does. Collective.
  std::string save(const std::filesystem::path& run, const StateDict& state, const Origin& origin);

  /// The same while training goes on, one save at a time, without `parallel` and derived file: begin() makes the files'
  /// structure and copies the state to `snapshot`, which a thread of each rank then writes by the system's own calls;
  /// neither changes before the save has ended.
  /// Collective.
  void begin(const std::filesystem::path& run, const StateDict& state, const Origin& origin, Snapshot& snapshot);
  bool under_way() const { return under_way_ != nullptr; }  ///< the same on all ranks. Local.
  /// While a save is under way: whether advance() would find the threads of all ranks done. Collective: one all-reduce
  /// of an integer.
  bool ready();
  /// Waits for the threads and goes on to what comes next; its content digest once it is committed, which ends it.
  /// Throws as save() does, which ends it too. Collective.
  std::optional<std::string> advance();
  /// The same to its end. Collective.
  std::string finish();

  /// After a save: sets aside what a branch leaves behind (settle_branch). When rank 0 fails, all throw the same Error,
  /// and the next save or start of a run takes it up again. Collective.
  void set_aside(const std::filesystem::path& run);

 private:
  struct Save;
  template <class Work>
  void guarded(Save& save, const Work& work);
  void make_structure(Save& save);
  void commit(Save& save);
  void write_once_copied(Save& save);
  void write_snapshot(Save& save);
  void prepare(Save& save);
  void create(Save& save);
  void guard(const Save& save);
  void lay_out(Save& save);
  void meet();
  void tell_places(Save& save);
  void write_direct(Save& save);
  void put(Save& save, const DatasetPlace& place, PosixFile& file, WriteBehind& out);
  void write_parallel(Save& save);
  void count(Save& save, std::size_t tensor, const Tensor& values, std::int64_t first, std::byte* copy);
  void sync(const Save& save);
  void refuse_non_finite(Save& save);
  void sum_digests(Save& save);
  void describe(Save& save);
  void close(Save& save);
  void derive(const Save& save);
  void complete(const Save& save);
  void announce(const Save& save);

  void about(fault::Phase phase);
  void enter(fault::Phase phase);
  /// What one rank throws in its work, all throw.
  template <class Work>
  void phase(fault::Phase phase, const Work& work);

  Device& device_;
  Stream& stream_;
  Control& control_;
  const hdf5::Parallel* parallel_;
  std::optional<DerivedFile> derived_;
  std::unique_ptr<Save> under_way_;
};

}  // namespace tessera
