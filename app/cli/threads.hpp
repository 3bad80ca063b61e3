#pragma once
#include <cstdint>

namespace tessera {

/// Host threads of one rank where the deck does not say: OMP_NUM_THREADS if that is a number from 1 on, else an equal
/// share of the cores that this process may use, at least one.
std::int64_t host_threads(std::int64_t ranks_on_host);

}  // namespace tessera
