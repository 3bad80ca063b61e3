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

/// Writes the checkpoints of one run in the form of FORMAT.md, complete or not at all. save() waits; start(), poll()
/// and close() write while training goes on. If any rank fails, all throw the same Error; nothing of this save remains,
/// and every older checkpoint does. One per rank. Collective over the world, except where a function says Local.
class CheckpointWriter {
 public:
  /// `parallel` not null: all ranks make datasets and write payload by HDF5 and MPI-IO. Null: rank 0 makes datasets,
  /// and every rank writes its payload by the system's own calls. The files are the same.
  CheckpointWriter(Device& device, Control& control, const hdf5::Parallel* parallel = nullptr,
                   std::optional<DerivedFile> derived = {});
  /// Waits for a save under way, which then leaves no checkpoint. Local.
  ~CheckpointWriter();

  /// Saves `state` as step_N of `run` and returns its content digest. Waits for the device and the disk; takes 8 MiB
  /// of host memory meanwhile.
  std::string save(const std::filesystem::path& run, const StateDict& state, const Origin& origin);

  /// Begins a save that a thread of each rank writes while training goes on. Makes the files' structure and copies the
  /// state to `snapshot`, which stays untouched until the save has ended. For a writer without `parallel` and derived
  /// file, while no save is under way.
  void start(const std::filesystem::path& run, const StateDict& state, const Origin& origin, Snapshot& snapshot);
  /// Whether a save that start() began has not ended; equal on all ranks. Local.
  bool under_way() const { return under_way_ != nullptr; }
  /// Takes the save under way as far as it gets without waiting, at the price of one all-reduce of an integer. Returns
  /// the content digest if that commits it; nothing if it goes on, or if none is under way.
  std::optional<std::string> poll();
  /// Waits for the save under way and returns its content digest; nothing if none is under way.
  std::optional<std::string> close();

 private:
  class Save;
  bool stage_done();
  std::optional<std::string> next_stage();

  Device& device_;
  Control& control_;
  const hdf5::Parallel* parallel_;
  std::optional<DerivedFile> derived_;
  std::unique_ptr<Save> under_way_;
};

}  // namespace tessera
