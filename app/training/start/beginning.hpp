#pragma once
#include <cstdint>

#include "app/training/loop/training.hpp"
#include "app/training/start/prepared_run.hpp"
#include "core/comm/mpi.hpp"
#include "io/checkpoint/structure.hpp"

namespace tessera {

/// The beginning of a run: step and origin.
struct Beginning {
  Origin origin;
  std::int64_t step = 0;   ///< steps done
  std::int64_t kept = -1;  ///< Parent::kept; -1 without a parent
  std::vector<KeyChange> changes{};  ///< since the parent was saved
};

/// Begins a run: resumes from a checkpoint if there is one, else loads given weights if the deck names any. Returns the
/// origin for later saves. Collective over the world.
Beginning begin_run(const PreparedRun& run, const RunRequest& request, const Mpi& mpi, Control& control,
                    Training& training, Device& device);

}  // namespace tessera
