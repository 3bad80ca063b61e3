#pragma once
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "app/training/start/changes.hpp"
#include "app/training/start/given_weights.hpp"
#include "app/training/start/preparation.hpp"
#include "app/training/start/run_request.hpp"
#include "io/files/run_lock.hpp"

namespace tessera {

/// What --allow-change has changed since a checkpoint was saved.
struct Changes {
  std::vector<KeyChange> keys;
  std::string text;  ///< of the changes and their effects
};

/// A run whose deck, corpora, directory and checkpoints have been checked, before memory is allocated.
struct PreparedRun : Prepared {
  std::unique_ptr<RunLock> lock;
  std::vector<std::filesystem::path> beginnings;  ///< checkpoints to resume from, the best first
  Changes changes;                                ///< since the first of `beginnings` was saved
  std::unique_ptr<hdf5::Parallel> parallel;       ///< with checkpoint.io mpio
  std::optional<GivenWeights> given;              ///< without `beginnings`: weights to start from, if not drawn ones
  Companions companions;                          ///< of `given`, that go on with the run
};

/// Prepares a run: reads the deck and its corpora, finds the checkpoints to resume from, and makes and locks the run
/// directory. The directory is made last, so that a refused run leaves nothing behind. Throws the same error on all
/// ranks. Collective over the world.
/// `segment`: of precision.schedule; none: that of the step to resume from, whose evaluation may be outstanding.
PreparedRun prepare_run(const RunRequest& request, const Mpi& mpi, Control& control,
                        std::optional<std::size_t> segment = std::nullopt);

/// The changes of a run that resumes from `checkpoint`; adds those that it may not make to `problems`. Local.
Changes changes_against(const PreparedRun& run, const RunRequest& request, const std::filesystem::path& checkpoint,
                        Problems& problems);

}  // namespace tessera
