#pragma once
#include <chrono>
#include <string>

#include "core/comm/mpi.hpp"
#include "core/comm/mpi_watch.hpp"

namespace tessera {

/// Mesh of the groups of `ranks` over NCCL, on the device's communication stream. Each rank must have a GPU of its own.
/// `watch` and `device` must outlive it. GPU builds only. Collective over the world.
Mesh nccl_mesh(MpiWatch& watch, const Ranks& ranks, Device& device, std::chrono::seconds timeout,
               const MpiOptions& options);

/// Whether copy engines can be used and the GPUs of each `group` neighbouring ranks have peer access to each other by
/// CUDA IPC. `gpu`: this rank's, an index of CUDA. False in a host build. Collective over the world.
bool gpus_reach_each_other(Control& control, int gpu, int group);

/// NCCL's version at run time, such as "2.28.3"; empty in a host build.
std::string nccl_version();

}  // namespace tessera
