#pragma once
#include <cstdint>
#include <vector>

#include "tests/reference/moe.hpp"

namespace tessera::reference {

/// Where the rows of all ranks' slots stand at the ranks of their experts, by rank and slot. Walked by expert, source
/// rank and token. -1: dropped, or no room.
std::vector<std::vector<std::int32_t>> rows_at_experts(const ArrivalShape& shape, const std::vector<Routed>& ranks);

}  // namespace tessera::reference
