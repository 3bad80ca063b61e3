#include <algorithm>
#include <bit>

#include "kernels/base/launch.hpp"
#include "kernels/sort/back.hpp"

namespace tessera {
namespace {

// Offsets of keys: between two neighbours in sorted order begin all keys above the first, up to the second.
void find_offsets(Stream& stream, std::int32_t* offsets, std::int32_t bound, const std::int32_t* keys,
                  const std::int32_t* order, std::int64_t n) {
  launch(stream, "sort_offsets", n + 1, KOKKOS_LAMBDA(std::int64_t i) {
    const std::int32_t first = i == 0 ? 0 : keys[order[i - 1]] + 1;
    const std::int32_t last = i == n ? bound : keys[order[i]];
    for (std::int32_t v = first; v <= last; ++v) offsets[v] = static_cast<std::int32_t>(i);
  });
}

}  // namespace

void sort_by_key(Stream& stream, Arena& arena, const Tensor& order, const Tensor& offsets, const Tensor& keys) {
  const std::int64_t n = keys.elements(), bound = offsets.elements() - 1;
  require(order.elements() == n && bound > 0, "sort_by_key", "order is [n], offsets are [K+1]");
  require(n < INT32_MAX && bound < INT32_MAX, "sort_by_key", "positions and keys are 32 bits wide");
  const int bits = std::max(1, static_cast<int>(std::bit_width(static_cast<std::uint64_t>(bound - 1))));
  const Arena::Frame frame(arena);
  sorting::positions_by_key(stream, arena, order.as<std::int32_t>(), keys.as<std::int32_t>(), n, bits);
  find_offsets(stream, offsets.as<std::int32_t>(), static_cast<std::int32_t>(bound), keys.as<std::int32_t>(),
               order.as<std::int32_t>(), n);
}

}  // namespace tessera
