#pragma once
#include <string>

#include "core/comm/mpi.hpp"

namespace tessera {

/// Index in Runtime::gpus() of the GPU that this rank computes on: the ranks of a host take its GPUs in turn. -1 in a
/// host build. Local.
int own_gpu(const Mpi& mpi);

/// Whether several ranks may compute on one GPU.
enum class Sharing { refused, allowed };
/// Problems with computing on own_gpu(): a GPU build without a GPU (Exit::environment); ranks that would share a GPU,
/// if `sharing` is refused (Exit::deck). Collective over the world.
Problems problems_with_gpus(const Mpi& mpi, Control& control, Sharing sharing);

}  // namespace tessera
