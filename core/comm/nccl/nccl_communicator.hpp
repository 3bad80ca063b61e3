#pragma once
#include <chrono>
#include <string>

#include "core/comm/mpi.hpp"
#include "core/comm/mpi_watch.hpp"

namespace tessera {

/// The groups of `ranks` over NCCL, on the device's communication stream; each rank must have a GPU of its own. `watch`
/// and `device` must outlive it. GPU builds only. Collective over the world.
Mesh nccl_mesh(MpiWatch& watch, const Ranks& ranks, Device& device, std::chrono::seconds timeout,
               const MpiOptions& options);

/// "2.28.3", as found at run time; empty in a host build.
std::string nccl_version();

}  // namespace tessera
