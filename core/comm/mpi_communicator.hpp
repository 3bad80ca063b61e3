#pragma once
#include <chrono>
#include <memory>

#include "core/comm/mpi.hpp"
#include "core/comm/mpi_watch.hpp"

namespace tessera {

/// Communicator on a duplicate of the world. `watch` and `stream` must outlive it.
std::unique_ptr<Communicator> mpi_communicator(MpiWatch& watch, Stream& stream, std::chrono::seconds timeout,
                                               const MpiOptions& options);

}  // namespace tessera
