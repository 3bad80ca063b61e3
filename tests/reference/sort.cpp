#include "tests/reference/sort.hpp"

namespace tessera::reference {

Sorted sort_by_key(std::span<const std::int32_t> keys, std::int32_t bound) {
  Sorted out{{}, {0}};
  for (std::int32_t key = 0; key < bound; ++key) {
    for (std::size_t i = 0; i < keys.size(); ++i)
      if (keys[i] == key) out.order.push_back(static_cast<std::int32_t>(i));
    out.offsets.push_back(static_cast<std::int32_t>(out.order.size()));
  }
  return out;
}

}  // namespace tessera::reference
