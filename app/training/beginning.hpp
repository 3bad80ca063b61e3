#pragma once
#include <cstdint>

#include "app/training/prepared_run.hpp"
#include "app/training/training.hpp"
#include "core/comm/mpi.hpp"
#include "io/checkpoint/structure.hpp"

namespace tessera {

/// Where a run begins.
struct Beginning {
  Origin origin;
  std::int64_t step = 0;   ///< steps done
  std::int64_t kept = -1;  ///< as Parent's; -1 too where there is no parent
};

/// Resumes from a checkpoint if there is one, else loads given weights if the deck names any; says what a save records
/// of this run. Collective.
Beginning begin_run(const PreparedRun& run, const RunRequest& request, const Mpi& mpi, Control& control,
                    Training& training, Device& device);

}  // namespace tessera
