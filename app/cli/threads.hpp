#pragma once
#include <cstdint>

namespace tessera {

/// Host threads of one rank where the deck does not say: OMP_NUM_THREADS if that is a number from 1 on, else an equal
/// share of the host's cores, at least one and no more than this process may run on.
std::int64_t host_threads(std::int64_t ranks_on_host);

}  // namespace tessera
