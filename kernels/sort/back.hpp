#pragma once
#include "kernels/sort/sort.hpp"

/// A back end's faster versions of the portable passes in sort.cpp. They return false, with nothing done, if there is
/// none.
namespace tessera::sorting {

/// The digit of a key that a pass sorts by.
struct Digit {
  const std::int32_t* keys;
  int shift;
  std::uint32_t mask;
};

/// Number of positions that are counted and placed together; largest number of buckets of a pass.
inline constexpr std::int64_t tile = 256, most_buckets = 256;

/// to [n] = the positions `from` [n] (null: 0, 1, ...) by ascending digit, equal digits in their order. `count` is room
/// for the buckets of n / tile tiles, rounded up. On a stream that is not dry.
bool pass(Stream& stream, std::int32_t* to, const std::int32_t* from, std::int64_t n, Digit digit, std::int32_t* count);

}  // namespace tessera::sorting
