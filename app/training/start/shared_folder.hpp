#pragma once
#include <filesystem>

#include "core/comm/mpi.hpp"
#include "io/metrics/run_directory.hpp"

namespace tessera {

/// Problems (Exit::environment) with a run directory that some host of the run does not see or cannot write in. If
/// MPI-IO will write, it must be able to lock in it too. Rank 0 writes a file with a name of its own. One rank of every
/// other host reads it and writes another, which rank 0 reads. Waits ten seconds at most for caches of network file
/// systems. `directory` must exist where rank 0 runs. Leaves no file. The same on every rank. Collective over the
/// world.
Problems problems_with_sharing(const std::filesystem::path& directory, WrittenBy by, const Mpi& mpi, Control& control);

}  // namespace tessera
