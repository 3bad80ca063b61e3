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
  class Save;

  Device& device_;
  Control& control_;
  const hdf5::Parallel* parallel_;
  std::optional<DerivedFile> derived_;
  std::unique_ptr<Save> under_way_;
};

}  // namespace tessera
