#pragma once
#include <chrono>
#include <memory>
#include <string>

#include "core/comm/mpi.hpp"
#include "core/comm/mpi_watch.hpp"

namespace tessera {

/// Communicator of all ranks over NCCL, on the device's communication stream; each rank must have a GPU of its own.
/// `watch` and `device` must outlive it. GPU builds only. Collective.
std::unique_ptr<Communicator> nccl_communicator(MpiWatch& watch, Device& device, std::chrono::seconds timeout,
                                                const MpiOptions& options);

/// "2.28.3", as found at run time; empty in a host build.
std::string nccl_version();

}  // namespace tessera
