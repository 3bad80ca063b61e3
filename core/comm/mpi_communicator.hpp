#pragma once
#include <chrono>

#include "core/comm/mpi.hpp"
#include "core/comm/mpi_watch.hpp"

namespace tessera {

/// The groups of `ranks` over MPI, progress on `stream`. `watch` and `stream` must outlive it. Collective over the
/// world.
Mesh mpi_mesh(MpiWatch& watch, const Ranks& ranks, Stream& stream, std::chrono::seconds timeout,
              const MpiOptions& options);

}  // namespace tessera
