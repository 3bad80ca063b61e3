#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/layout/param.hpp"

namespace tessera {

struct Placement;

/// Where an element-sharded bucket of `size` elements is cut between `ranks`: ranks + 1 positions, ascending, from 0 to
/// size; slice r is [cut r, cut r + 1).
///
/// Flat cuts: equal slices, whatever they hold. `size` is a multiple of `ranks`.
std::vector<std::int64_t> flat_cuts(std::int64_t size, int ranks);
/// Tile cuts: cut r is the allowed position nearest to r size / ranks, of two the lower. Uneven slices, some empty.
/// `allowed` ascends and ends with size.
std::vector<std::int64_t> tile_cuts(std::span<const std::int64_t> allowed, int ranks);

/// Positions allowed to tile cuts in a bucket of one format: its end, and wherever a row of the format's blocks, of
/// either copy, begins in a member. Gaps between members belong to the slice before them.
std::vector<std::int64_t> tile_positions(const ParamRegistry& registry, FormatId format,
                                         std::span<const Placement> members, std::int64_t size);

/// Rows of a weight whose elements a rank owns together under tile cuts: whole blocks of both copies.
std::int64_t tile_rows(FormatId format);

}  // namespace tessera
