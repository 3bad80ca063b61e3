#pragma once
#include <cstdint>
#include <vector>

#include "core/layout/layout.hpp"
#include "core/params/planes.hpp"

namespace tessera {

/// An array has `entries` entries for every `elements` elements of a member, in row-major order.
struct Density {
  std::int64_t elements = 1, entries = 1;
};

/// The parts of one of a bucket's arrays, as `cut` cuts the bucket's elements: a rank sends what is made from its own.
/// Of data, which lie at the bucket's offsets.
RangesByRank ranges_of_data(const RangesByRank& cut, FormatId format);
/// Of an array that packs members, each with its own density. A member's padding belongs to the part with its last row.
/// Throws Error{internal} if a cut splits an entry.
RangesByRank ranges_of(const Bucket& bucket, const RangesByRank& cut, const StoredArray& array,
                       const std::vector<Density>& densities);

/// The same ranges in an array that begins with entry `begin`. An empty range begins within it.
RangesByRank counted_from(std::int64_t begin, RangesByRank parts);

/// Densities by member: of scales, counted in whole rows of blocks, padding included; of block_scales_of(); of amaxes.
std::vector<Density> scale_densities(const ParamRegistry& registry, const Bucket& bucket, Side side);
std::vector<Density> block_scale_densities(const ParamRegistry& registry, const Bucket& bucket);
std::vector<Density> member_densities(const Bucket& bucket);

}  // namespace tessera
