#pragma once
#include <string>

#include "core/comm/mpi.hpp"

namespace tessera {

/// The GPU that this rank computes on, as an index of Runtime::gpus(): its host's ranks take them in turn. -1 in a host
/// build.
int own_gpu(const Mpi& mpi);

/// Whether several ranks may compute on one GPU.
enum class Sharing { refused, allowed };
/// Problems with computing on own_gpu(): a GPU build without a GPU (Exit::environment), ranks that would share one
/// where that is refused (Exit::deck). Collective.
Problems problems_with_gpus(const Mpi& mpi, Control& control, Sharing sharing);

}  // namespace tessera
