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
/// Equal slices, whatever they hold; ranks divide the size.
std::vector<std::int64_t> flat_cuts(std::int64_t size, int ranks);
/// Cut r at the allowed position nearest to r size / ranks, at the lower one of two. Slices are uneven, some empty.
/// `allowed` ascends and ends with size.
std::vector<std::int64_t> tile_cuts(std::span<const std::int64_t> allowed, int ranks);

/// Where tile cuts may stand in a bucket of one format: at its end, and where rows of the format's blocks, of either
/// copy, begin in a member. Whatever lies between two members belongs to the slice before.
std::vector<std::int64_t> tile_positions(const ParamRegistry& registry, FormatId format,
                                         std::span<const Placement> members, std::int64_t size);

/// Rows of a weight whose elements a rank owns together under tile cuts: whole blocks of both copies.
std::int64_t tile_rows(FormatId format);

}  // namespace tessera
