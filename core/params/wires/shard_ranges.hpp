#pragma once
#include <cstdint>
#include <vector>

#include "core/layout/layout.hpp"
#include "core/params/planes.hpp"

namespace tessera {

/// How a bucket's array is cut between ranks, in entries of the array: counts and displacements of an all-gather. The
/// cuts follow from the bucket's cuts of elements, so that a rank sends what is made from the elements that it owns.
struct RangesByRank {
  std::vector<std::int64_t> counts, begins;  ///< of each rank's part
};

/// An array has `entries` entries for every `elements` elements of a member, in row-major order.
struct Density {
  std::int64_t elements = 1, entries = 1;
};

/// Parts of an array of data, which lie at the bucket's offsets.
RangesByRank ranges_of_data(const Bucket& bucket, FormatId format);
/// Parts of an array that packs members, each with its own density. A member's padding belongs to the part with its
/// last row. Throws Error{internal} if a cut splits an entry.
RangesByRank ranges_of(const Bucket& bucket, const StoredArray& array, const std::vector<Density>& densities);

/// Densities by member: of scales, counted in whole rows of blocks, padding included; of block_scales_of(); of amaxes.
std::vector<Density> scale_densities(const ParamRegistry& registry, const Bucket& bucket, Side side);
std::vector<Density> block_scale_densities(const ParamRegistry& registry, const Bucket& bucket);
std::vector<Density> member_densities(const Bucket& bucket);

}  // namespace tessera
