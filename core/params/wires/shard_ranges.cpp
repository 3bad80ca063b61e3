#include "core/params/wires/shard_ranges.hpp"

#include <algorithm>

#include "kernels/formats/registry.hpp"

namespace tessera {
namespace {

/// The first entry of the part that begins at element `position`. Entries behind those of a member's last element
/// (padding) belong to the part that has that element.
std::int64_t entry_at(const Bucket& bucket, const StoredArray& array, const std::vector<Density>& densities,
                      std::int64_t position) {
  const auto next = std::ranges::upper_bound(bucket.members, ElementIndex(position), {}, &Placement::offset);
  const auto m = static_cast<std::size_t>(next - bucket.members.begin()) - 1;  // the first member begins at 0
  const std::int64_t within = position - bucket.members[m].offset.value;
  if (within >= bucket.members[m].size.value) return array.members[m].end();
  const Density& density = densities[m];
  require(within % density.elements == 0, "ranges_of", "a cut splits a row of blocks");
  return array.members[m].first + within / density.elements * density.entries;  // mutation: scales_of_a_neighbour
}

template <class F>
std::vector<Density> densities_of(const ParamRegistry& registry, const Bucket& bucket, const F& density) {
  std::vector<Density> all;
  for (const Placement& p : bucket.members) {
    const Shape& member = registry[p.param].member;
    all.push_back(density(formats::Matrix{member[0], member[1]}));
  }
  return all;
}

}  // namespace

RangesByRank ranges_of_data(const RangesByRank& cut, FormatId format) {
  RangesByRank parts;
  for (std::size_t r = 0; r < cut.counts.size(); ++r) {
    parts.begins.push_back(formats::data_bytes(format, cut.begins[r]));  // mutation: bytes_padded_by_themselves
    parts.counts.push_back(formats::data_bytes(format, cut.begins[r] + cut.counts[r]) - parts.begins[r]);
  }
  return parts;
}

RangesByRank ranges_of(const Bucket& bucket, const RangesByRank& cut, const StoredArray& array,
                       const std::vector<Density>& densities) {
  RangesByRank parts;
  for (std::size_t r = 0; r < cut.counts.size(); ++r) {
    const std::int64_t begin = cut.begins[r], end = begin + cut.counts[r];
    parts.begins.push_back(entry_at(bucket, array, densities, begin));
    parts.counts.push_back(entry_at(bucket, array, densities, end) - parts.begins[r]);
  }
  return parts;
}

RangesByRank counted_from(std::int64_t begin, RangesByRank parts) {
  for (std::int64_t& at : parts.begins) at -= begin;  // mutation: pieces_of_a_shard_overlap
  return parts;
}

std::vector<Density> scale_densities(const ParamRegistry& registry, const Bucket& bucket, Side side) {
  const FormatTraits format = traits_of(*bucket.key.format.codes);
  require(format.scale_layout(side).order == formats::Order::as_source, "scale_densities",
          "scales that lie transposed are in no rank's part");
  return densities_of(registry, bucket, [&](formats::Matrix m) {
    return Density{format.block_of(side).rows * m.columns,
                   format.scale_layout(side).repeat.rows * format.padded_extent(side, m).columns};
  });
}

std::vector<Density> block_scale_densities(const ParamRegistry& registry, const Bucket& bucket) {
  const FormatTraits format = traits_of(*bucket.key.format.codes);
  return densities_of(registry, bucket, [&](formats::Matrix m) {
    return Density{format.block.rows * m.columns, format.blocks(Side::rowwise, m).columns};
  });
}

std::vector<Density> member_densities(const Bucket& bucket) {
  std::vector<Density> all;
  for (const Placement& p : bucket.members) all.push_back({p.size.value, 1});
  return all;
}

}  // namespace tessera
