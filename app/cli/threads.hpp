#pragma once
#include <cstdint>

#include "kernels/base/error.hpp"

namespace tessera {

/// Default of host threads of one rank. OMP_NUM_THREADS if it is a positive number. Else an equal share of the host's
/// cores, at least one and at most the cores that this process may run on. Local.
std::int64_t host_threads(std::int64_t ranks_on_host);

/// A problem (Exit::environment) if this process cannot have so many threads. Local.
Problems problems_with_threads(std::int64_t threads);

}  // namespace tessera
