#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/layout/param.hpp"

namespace tessera {

struct Bucket;

/// Where an element-sharded bucket of `size` elements is cut between `ranks`: ranks + 1 positions, ascending, from 0 to
/// size; slice r is [cut r, cut r + 1).
///
/// Flat cuts: equal slices, whatever they hold. `size` is a multiple of `ranks`.
std::vector<std::int64_t> flat_cuts(std::int64_t size, int ranks);
/// Tile cuts: cut r is the allowed position nearest to r size / ranks; of two equally near the lower. Slices are uneven
/// and may be empty. `allowed` ascends and ends with size.
std::vector<std::int64_t> tile_cuts(std::span<const std::int64_t> allowed, int ranks);

/// Positions at which tile cuts may cut a bucket of a format with codes: its end, and in each member every
/// tile_rows(format)-th row. A block of the gradients' wire must begin there. A gap between members belongs to the
/// slice before it.
std::vector<std::int64_t> tile_positions(const ParamRegistry& registry, const Bucket& bucket);

/// Number of rows of a weight that tile cuts never separate: they hold whole blocks of both copies.
std::int64_t tile_rows(FormatId format);

}  // namespace tessera
