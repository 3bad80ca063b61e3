#pragma once
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "app/training/changes.hpp"
#include "app/training/given_weights.hpp"
#include "app/training/preparation.hpp"
#include "app/training/run_request.hpp"
#include "io/files/run_lock.hpp"

namespace tessera {

/// A run whose deck, corpus, directory and checkpoints were found sound, before memory is allocated.
struct PreparedRun : Prepared {
  std::unique_ptr<RunLock> lock;
  std::vector<std::filesystem::path> beginnings;  ///< checkpoints to resume from, the best first
  std::vector<KeyChange> changes;                 ///< by --allow-change, against the first of them
  std::string changes_text;                       ///< the same in words, with their consequences
  std::unique_ptr<hdf5::Parallel> parallel;       ///< with checkpoint.io mpio
  std::optional<GivenWeights> given;              ///< where there are none: what to start with, if not drawn weights
};

/// Prepares the run, finds what it begins from and locks its directory, which is made last of all: a run that is
/// refused leaves nothing behind. Throws the same on all ranks. Collective.
PreparedRun prepare(const RunRequest& request, const Mpi& mpi, Control& control);

}  // namespace tessera
