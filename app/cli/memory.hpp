#pragma once
#include "core/comm/mpi.hpp"
#include "core/plan/plan.hpp"

namespace tessera {

/// Bytes of host memory for a rank's snapshot with checkpoint.async; else 0.
std::int64_t snapshot_bytes(const RunPlan& plan);

/// Problems with holding a plan's memory on the ranks' hosts or GPUs (`gpu`: own_gpu()), and its snapshots on the
/// hosts. A problem is more than the total memory, or more than a process may have (Exit::deck). Memory that other
/// processes hold is not considered. Collective over the world.
Problems problems_with_memory(const Mpi& mpi, Control& control, const RunPlan& plan, int gpu);

/// The same for one rank, alone on this machine or on its first GPU; none if a GPU build finds no GPU. Local.
Problems problems_with_memory(const RunPlan& plan);

}  // namespace tessera
