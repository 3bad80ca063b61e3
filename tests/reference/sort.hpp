#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace tessera::reference {

struct Sorted {
  std::vector<std::int32_t> order, offsets;
};
/// Positions by ascending key, equal keys by ascending position, and where the run of each key in [0, bound] begins.
Sorted sort_by_key(std::span<const std::int32_t> keys, std::int32_t bound);

}  // namespace tessera::reference
