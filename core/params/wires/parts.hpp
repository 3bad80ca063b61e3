#pragma once
#include <cstdint>
#include <vector>

#include "core/layout/layout.hpp"
#include "core/params/planes.hpp"

namespace tessera {

/// How an array of a bucket is cut between ranks, in its entries: what an all-gather's Exchange refers to. Follows from
/// the bucket's cuts of elements alone, so that whoever owns elements ships what is made of them.
struct Parts {
  std::vector<std::int64_t> counts, begins;  ///< of each rank's part
};

/// `entries` entries of an array for every `elements` elements of a member, in row-major order.
struct Density {
  std::int64_t elements = 1, entries = 1;
};

/// Parts of data, which stand at the bucket's offsets.
Parts parts_of_data(const Bucket& bucket, FormatId format);
/// Parts of an array that packs members, each of its density; a member's padding goes with its last row. Throws
/// Error{internal} where a cut splits entries of a member.
Parts parts_of(const Bucket& bucket, const StoredArray& array, const std::vector<Density>& densities);

/// Densities: of scales, made by whole rows of blocks, with their padding; of block_scales_of(); of amaxes.
std::vector<Density> scale_densities(const ParamRegistry& registry, const Bucket& bucket, Side side);
std::vector<Density> block_scale_densities(const ParamRegistry& registry, const Bucket& bucket);
std::vector<Density> member_densities(const Bucket& bucket);

}  // namespace tessera
