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

/// A further file of the checkpoint folder, which all ranks make from its model.h5.
struct DerivedFile {
  const char* name;
  std::function<void(const std::filesystem::path& folder)> make;  ///< by rank 0: with space, no content
  /// By each rank: writes and syncs this rank's part.
  std::function<void(const std::filesystem::path& folder, int rank, int ranks)> fill;
};

/// Writes the checkpoints of one run in the form of FORMAT.md, complete or not at all. One per rank.
class CheckpointWriter {
 public:
  /// `parallel` not null: all ranks make datasets and write payload by HDF5 and MPI-IO. Null: rank 0 makes datasets,
  /// and every rank writes its payload by the system's own calls. The files are the same.
  CheckpointWriter(Device& device, Control& control, const hdf5::Parallel* parallel = nullptr,
                   std::optional<DerivedFile> derived = {});
  /// Waits for a save under way, which then leaves no checkpoint.
  ~CheckpointWriter();

  /// Saves `state` as step_N of `run` and returns its content digest. Waits for the device and the disk; takes 8 MiB
  /// of host memory meanwhile. If any rank fails, all throw the same Error, nothing of this save remains, and every
  /// older checkpoint does. Collective over the world.
  std::string save(const std::filesystem::path& run, const StateDict& state, const Origin& origin);

  /// Begins an asynchronous save: makes the files' structure and copies the state to `snapshot`, which a thread of each
  /// rank writes by the system's own calls while training goes on. One save at a time, without `parallel` and derived
  /// file; files' structure and `snapshot` must not be changed by anybody until the save has ended. Collective over the
  /// world.
  void begin(const std::filesystem::path& run, const StateDict& state, const Origin& origin, Snapshot& snapshot);
  bool under_way() const { return under_way_ != nullptr; }  ///< equal on all ranks. Local.
  /// Whether the threads of all ranks are done, so that advance() would not wait. Only while a save is under way.
  /// Collective over the world: one all-reduce of an integer.
  bool ready();
  /// Waits for the threads and begins the next stage of the save. Returns the content digest once it is committed,
  /// which ends the save. Throws as save() does, which ends it too. Collective over the world.
  std::optional<std::string> advance();
  /// Advances to the end of the save. Collective over the world.
  std::string finish();

  /// Called after a save: sets aside what a branch leaves behind (settle_branch). If rank 0 fails, all throw the same
  /// Error, and the next save or the next start of a run does it instead. Collective over the world.
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
