#pragma once
#include <chrono>

#include "core/comm/mpi.hpp"
#include "core/comm/mpi_watch.hpp"

namespace tessera {

/// Mesh of the groups of `ranks` over MPI; `stream` gets the progress hook. `watch` and `stream` must outlive it.
/// Collective over the world.
Mesh mpi_mesh(MpiWatch& watch, const Ranks& ranks, Stream& stream, std::chrono::seconds timeout,
              const MpiOptions& options);

}  // namespace tessera
