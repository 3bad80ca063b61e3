#include <algorithm>
#include <bit>
#include <utility>

#include "kernels/base/index.hpp"
#include "kernels/base/launch.hpp"
#include "kernels/sort/back.hpp"

namespace tessera {
namespace {

using sorting::Digit;

// Positions that one thread counts and places in order, so that the sort is stable without atomics.
constexpr std::int64_t block = sorting::tile;
constexpr int widest_digit = 8;  // bits
static_assert(1 << widest_digit == sorting::most_buckets);

KOKKOS_INLINE_FUNCTION std::int64_t digit_of(const Digit& digit, std::int32_t position) {
  return (static_cast<std::uint32_t>(digit.keys[position]) >> digit.shift) & digit.mask;
}

// The tables of one pass: block b puts its first position of digit d at start[d] + count[b buckets + d].
struct Tables {
  std::int32_t *count, *total, *start;
  std::int64_t blocks, buckets;
};

void count_digits(Stream& stream, Digit digit, Tables t, const std::int32_t* from, std::int64_t n) {
  launch(stream, "sort_count", t.blocks, KOKKOS_LAMBDA(std::int64_t b) {
    std::int32_t* const count = t.count + b * t.buckets;
    for (std::int64_t d = 0; d < t.buckets; ++d) count[d] = 0;
    const std::int64_t end = (b + 1) * block < n ? (b + 1) * block : n;
    for (std::int64_t i = b * block; i < end; ++i)
      ++count[digit_of(digit, from != nullptr ? from[i] : static_cast<std::int32_t>(i))];
  });
}

void scan_digits(Stream& stream, Tables t) {
  launch(stream, "sort_scan_blocks", t.buckets, KOKKOS_LAMBDA(std::int64_t d) {
    std::int32_t before = 0;
    for (std::int64_t b = 0; b < t.blocks; ++b) {
      const std::int32_t here = t.count[b * t.buckets + d];
      t.count[b * t.buckets + d] = before;
      before += here;
    }
    t.total[d] = before;
  });
  launch(stream, "sort_scan_buckets", t.buckets, KOKKOS_LAMBDA(std::int64_t d) {
    std::int32_t before = 0;
    for (std::int64_t lower = 0; lower < d; ++lower) before += t.total[lower];
    t.start[d] = before;
  });
}

void place(Stream& stream, Digit digit, Tables t, std::int32_t* to, const std::int32_t* from, std::int64_t n) {
  launch(stream, "sort_place", t.blocks, KOKKOS_LAMBDA(std::int64_t b) {
    std::int32_t* const count = t.count + b * t.buckets;
    const std::int64_t end = (b + 1) * block < n ? (b + 1) * block : n;
    for (std::int64_t i = b * block; i < end; ++i) {
      const std::int32_t position = from != nullptr ? from[i] : static_cast<std::int32_t>(i);
      const std::int64_t d = digit_of(digit, position);
      to[t.start[d] + count[d]++] = position;
    }
  });
}

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
  const int passes = static_cast<int>(ceil_div(bits, widest_digit)), width = static_cast<int>(ceil_div(bits, passes));
  const std::int64_t blocks = ceil_div(n, block), buckets = std::int64_t{1} << width;

  const Arena::Frame frame(arena);
  const auto temp = [&](std::int64_t count) { return arena.temp(DType::i32, Shape{count}).as<std::int32_t>(); };
  std::int32_t *const result = order.as<std::int32_t>(), *const other = temp(n);
  const Tables tables{temp(blocks * buckets), temp(buckets), temp(buckets), blocks, buckets};

  // Buffers alternate so that the last pass fills `order`. The first pass reads the positions 0, 1, ... themselves.
  const std::int32_t* from = nullptr;
  for (int pass = 0; pass < passes; ++pass) {
    std::int32_t* const to = (passes - pass) % 2 == 1 ? result : other;
    const Digit digit{keys.as<std::int32_t>(), pass * width, static_cast<std::uint32_t>(buckets - 1)};
    if (stream.dry() || !sorting::pass(stream, to, from, n, digit, tables.count)) {
      count_digits(stream, digit, tables, from, n);
      scan_digits(stream, tables);
      place(stream, digit, tables, to, from, n);
    }
    from = to;
  }
  find_offsets(stream, offsets.as<std::int32_t>(), static_cast<std::int32_t>(bound), keys.as<std::int32_t>(), result,
               n);
}

}  // namespace tessera
