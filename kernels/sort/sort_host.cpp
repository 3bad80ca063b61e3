// A radix sort in portable passes: blocks count the digits of their positions, then place them.
#include <cstdint>

#include "kernels/base/index.hpp"
#include "kernels/base/launch.hpp"
#include "kernels/sort/back.hpp"

namespace tessera::sorting {
namespace {

/// The digit of a key that a pass sorts by.
struct Digit {
  const std::int32_t* keys;
  int shift;
  std::uint32_t mask;
};

// Positions that one thread counts and places in order, so that the sort is stable without atomics.
constexpr std::int64_t block = 256;
constexpr int widest_digit = 8;  // bits

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

}  // namespace

void positions_by_key(Stream& stream, Arena& arena, std::int32_t* order, const std::int32_t* keys, std::int64_t n,
                      int bits) {
  const int passes = static_cast<int>(ceil_div(bits, widest_digit)), width = static_cast<int>(ceil_div(bits, passes));
  const std::int64_t blocks = ceil_div(n, block), buckets = std::int64_t{1} << width;
  const auto temp = [&](std::int64_t count) { return arena.temp(DType::i32, Shape{count}).as<std::int32_t>(); };
  std::int32_t* const other = temp(n);
  const Tables tables{temp(blocks * buckets), temp(buckets), temp(buckets), blocks, buckets};

  // Buffers alternate so that the last pass fills `order`. The first pass reads the positions 0, 1, ... themselves.
  const std::int32_t* from = nullptr;
  for (int pass = 0; pass < passes; ++pass) {
    std::int32_t* const to = (passes - pass) % 2 == 1 ? order : other;
    const Digit digit{keys, pass * width, static_cast<std::uint32_t>(buckets - 1)};
    count_digits(stream, digit, tables, from, n);
    scan_digits(stream, tables);
    place(stream, digit, tables, to, from, n);
    from = to;
  }
}

}  // namespace tessera::sorting
