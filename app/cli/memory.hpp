#pragma once
#include "core/comm/mpi.hpp"
#include "core/plan/plan.hpp"

namespace tessera {

/// Host memory of a rank's snapshot with checkpoint.async; else 0.
std::int64_t snapshot_bytes(const RunPlan& plan);

/// Problems with holding a plan's memory on the hosts, or on the GPUs (`gpu`: as own_gpu says), that the ranks
/// run on, and its snapshot on the hosts: more than there is at all, or than a process may have (Exit::deck).
/// What others hold there is not looked at. Collective.
Problems problems_with_memory(const Mpi& mpi, Control& control, const RunPlan& plan, int gpu);

/// The same of one rank, alone on this machine or on its first GPU; nothing where a GPU build sees none. Local.
Problems problems_with_memory(const RunPlan& plan);

}  // namespace tessera
