#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <numeric>
#include <span>

#include "kernels/base/error.hpp"

namespace tessera {

/// Number of elements in one unit of an MPI call, whose counts are ints. In units of it all counts, all displacements
/// and `extent` (the largest position) fit `most`. It is 1 if `extent` fits, else the greatest common divisor of counts
/// and displacements. If that exceeds `most`, the largest power of two up to `most` that divides it. Throws
/// Error{environment} if `extent` does not fit in that unit either.
inline std::int64_t block_of(std::span<const std::int64_t> counts, std::span<const std::int64_t> displacements,
                             std::int64_t extent, std::int64_t most) {
  if (extent <= most) return 1;
  std::int64_t block = 0;
  for (std::int64_t n : counts) block = std::gcd(block, n);
  for (std::int64_t n : displacements) block = std::gcd(block, n);
  if (block == 0) return 1;
  if (block > most)  // lowest set bit: the largest power of two that divides the block, and so do smaller ones
    block = std::min(block & -block, static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(most))));
  if (extent / block > most)
    throw Error(Exit::environment, "a collective counts beyond MPI's int: cut its buffer into smaller buckets");
  return block;
}

/// Calls f(begin, count) for [0, n) in pieces of at most `most`.
template <class F> void for_each_piece(std::int64_t n, std::int64_t most, const F& f) {
  for (std::int64_t begin = 0; begin < n; begin += most) f(begin, static_cast<int>(std::min(most, n - begin)));
}

}  // namespace tessera
