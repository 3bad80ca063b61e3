#include "core/layout/cuts.hpp"

#include <algorithm>

#include "core/layout/layout.hpp"
#include "kernels/formats/registry.hpp"

namespace tessera {

std::vector<std::int64_t> flat_cuts(std::int64_t size, int ranks) {
  std::vector<std::int64_t> cuts;
  for (int r = 0; r <= ranks; ++r) cuts.push_back(r * (size / ranks));
  return cuts;
}

std::vector<std::int64_t> tile_cuts(std::span<const std::int64_t> allowed, int ranks) {
  const std::int64_t size = allowed.back();
  std::vector<std::int64_t> cuts{0};
  for (int r = 1; r < ranks; ++r) {
    // All positions are multiplied by `ranks`, so that r size / ranks is a whole number.
    const std::int64_t wanted = r * size;
    const auto above = std::ranges::lower_bound(allowed, wanted, {}, [&](std::int64_t p) { return p * ranks; });
    const bool lower = above != allowed.begin() && wanted - *(above - 1) * ranks <= *above * ranks - wanted;
    cuts.push_back(std::max(cuts.back(), lower ? *(above - 1) : *above));
  }
  cuts.push_back(size);
  return cuts;
}

std::vector<std::int64_t> tile_positions(const ParamRegistry& registry, const Bucket& bucket) {
  std::vector<std::int64_t> allowed;
  for (const Placement& p : bucket.members) {
    const std::int64_t tile = tile_rows(*bucket.key.format.codes) * registry[p.param].member[-1];
    for (std::int64_t begin = 0; begin < p.size.value; begin += tile)
      if (begin % cut_of(bucket.key.wire) == 0)  // mutation: a_block_across_a_cut.1
        allowed.push_back(p.offset.value + begin);
  }
  allowed.push_back(bucket.size.value);
  return allowed;
}

std::int64_t tile_rows(FormatId format) {
  const formats::Block block = traits_of(format).block;
  return std::max(block.rows, block.columns);
}

}  // namespace tessera
