#include "core/layout/cuts.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <random>

#include "core/config/divisors.hpp"
#include "core/layout/layout.hpp"
#include "core/params/wires/shard_ranges.hpp"
#include "kernels/formats/registry.hpp"
#include "tests/support/shown.hpp"

/// Tile cuts of buckets between rows of blocks. Every entry made from a slice's elements is in the part of the rank
/// that owns them.
namespace tessera {
namespace {

constexpr int rank_counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 48, 96, 256};

std::vector<FormatId> weight_formats() {
  return {formats::id_of<formats::Fp8Block>, formats::id_of<formats::Mxfp8>, formats::id_of<formats::Mxfp8Tiles>,
          formats::id_of<formats::Nvfp4>, formats::id_of<formats::Fp8Tensor>, formats::id_of<formats::Mxfp4>,
          formats::id_of<formats::Mxfp4Tiles>, formats::id_of<formats::Mxfp6E2m3Tiles>,
          formats::id_of<formats::Nvfp4FourOverSix>};
}

/// Parameters: matrices and experts of random sizes that the format takes, with vectors between them.
ParamRegistry random_registry(FormatId format, std::mt19937& random, int count) {
  ParamRegistry registry(TreatmentRules{{.weight = {format, format}}});
  const ParamRegistry::InBlock block(registry, 0);
  const FormatTraits traits = traits_of(format);
  const std::int64_t unit = traits.ragged ? 1 : std::max(traits.block.rows, traits.block.columns);
  const auto size = [&] { return unit * (1 + static_cast<std::int64_t>(random() % (traits.ragged ? 300u : 9u))); };
  for (int i = 0; i < count; ++i) {
    const std::string name = std::to_string(i);
    const Shape matrix{size(), size()};
    registry.add({"m" + name, matrix, 1, Role::matrix, {}, {"m" + name, matrix, 0}});
    registry.add({"v" + name, {7}, 1, Role::bias, {}, {"v" + name, {7}, 0}});
    const int members = 1 + static_cast<int>(random() % 4);
    const Shape expert{size(), size()};
    registry.add({"e" + name, expert, members, Role::expert, {}, {"e" + name, {members, expert[0], expert[1]}, 0}});
  }
  return registry;
}

LayoutRules rules(int ranks, std::int64_t bucket_elements, GatherCuts cuts) {
  return {ranks, ranks, bucket_elements, OwnerKind::element_sharded, cuts};
}

std::vector<std::int64_t> cuts_of(const Bucket& bucket) {
  std::vector<std::int64_t> cuts = bucket.begins;
  cuts.push_back(bucket.size.value);
  return cuts;
}

/// The rule of tile cuts, by trying every position.
std::vector<std::int64_t> nearest(const std::vector<std::int64_t>& allowed, std::int64_t size, int ranks) {
  std::vector<std::int64_t> cuts{0};
  for (int r = 1; r < ranks; ++r) {
    std::int64_t best = allowed.front();
    for (const std::int64_t p : allowed)  // ascending, so that of two equally near ones the lower is kept
      if (std::abs(p * ranks - r * size) < std::abs(best * ranks - r * size)) best = p;
    cuts.push_back(std::max(best, cuts.back()));
  }
  cuts.push_back(size);
  return cuts;
}

TEST(Cuts, StandAtTheNearestRowOfBlocks) {
  std::mt19937 random(3);
  for (const FormatId format : weight_formats())
    for (const int ranks : rank_counts)
      for (const std::int64_t bucket_elements : {1, 20000, 1 << 24}) {
        const ParamRegistry registry = random_registry(format, random, 1 + static_cast<int>(random() % 4));
        const ParamLayout layout = ParamLayout::build(registry, rules(ranks, bucket_elements, GatherCuts::tile));
        for (const Bucket& bucket : layout.buckets()) {
          if (!bucket.key.format.codes) {
            EXPECT_EQ(cuts_of(bucket), flat_cuts(bucket.size.value, ranks));
            continue;
          }
          const std::int64_t rows = tile_rows(format);
          std::vector<std::int64_t> allowed;
          for (const Placement& p : bucket.members) {
            const Shape& m = registry[p.param].member;
            for (std::int64_t row = 0; row < m[0]; row += rows) allowed.push_back(p.offset.value + row * m[1]);
          }
          allowed.push_back(bucket.size.value);
          ASSERT_EQ(cuts_of(bucket), nearest(allowed, bucket.size.value, ranks)) << ranks << " ranks";
          std::int64_t sum = 0;
          for (std::size_t r = 0; r < bucket.counts.size(); ++r) {
            ASSERT_GE(bucket.counts[r], 0);
            sum += bucket.counts[r];
          }
          ASSERT_EQ(sum, bucket.size.value);
        }
      }
}

TEST(Cuts, TiesTakeTheLowerPosition) {
  EXPECT_EQ(tile_cuts(std::vector<std::int64_t>{0, 96, 160, 256}, 2), (std::vector<std::int64_t>{0, 96, 256}));
  EXPECT_EQ(tile_cuts(std::vector<std::int64_t>{0, 128}, 4), (std::vector<std::int64_t>{0, 0, 0, 128, 128}));
}

TEST(Cuts, MoveNoOffsetOwnEachElementOnceAndChangeTheHash) {
  std::mt19937 random(5);
  for (const FormatId format : weight_formats())
    for (const int ranks : rank_counts) {
      const ParamRegistry registry = random_registry(format, random, 3);
      const ParamLayout flat = ParamLayout::build(registry, rules(ranks, 30000, GatherCuts::flat));
      const ParamLayout tile = ParamLayout::build(registry, rules(ranks, 30000, GatherCuts::tile));
      bool same = true;
      for (BucketId b : flat.buckets().ids()) same &= flat.buckets()[b].begins == tile.buckets()[b].begins;
      EXPECT_EQ(flat.hash() == tile.hash(), same) << ranks << " ranks";
      EXPECT_EQ(same, ranks == 1);
      for (int p = 0; p < registry.size(); ++p) EXPECT_EQ(flat.placement({p}).offset, tile.placement({p}).offset);
      for (BucketId b : tile.buckets().ids()) {
        std::int64_t owned = 0, all = 0;
        for (const Placement& p : tile.buckets()[b].members) all += p.size.value;
        for (int r = 0; r < ranks; ++r)
          for (const ShardRange& piece : tile.shard_ranges(b, {{r, ranks}, {r, ranks}, {}})) owned += piece.count.value;
        EXPECT_EQ(owned, all);  // slices do not overlap, so each element is in one
      }
    }
}

/// Entries of an array that are made from element (row, column) of member i.
using EntryOf = std::function<std::int64_t(std::size_t i, std::int64_t row, std::int64_t column)>;

/// Expects that each entry is in the part of the rank that owns the elements it is made from. Parts are contiguous and
/// cover the array.
void expect_packed(const ParamRegistry& registry, const Bucket& bucket, const RangesByRank& cut,
                   const RangesByRank& parts, std::int64_t entries, const EntryOf& entry) {
  std::map<std::int64_t, std::int64_t> by_place;
  for (std::size_t r = 0; r < parts.counts.size(); ++r) {
    ASSERT_GE(parts.counts[r], 0);
    if (parts.counts[r] > 0) by_place[parts.begins[r]] += parts.counts[r];
  }
  std::int64_t end = 0;
  for (const auto& [begin, count] : by_place) {
    ASSERT_EQ(begin, end);
    end += count;
  }
  ASSERT_EQ(end, entries);
  const auto owner = [](const std::vector<std::int64_t>& begins, const std::vector<std::int64_t>& counts,
                        std::int64_t at) {
    for (std::size_t r = 0; r < begins.size(); ++r)
      if (begins[r] <= at && at < begins[r] + counts[r]) return r;
    return begins.size();
  };
  for (std::size_t i = 0; i < bucket.members.size(); ++i) {
    const Placement& p = bucket.members[i];
    const Shape& m = registry[p.param].member;
    for (std::int64_t row = 0; row < m[0]; ++row)
      for (const std::int64_t column : {std::int64_t{0}, m[1] / 2, m[1] - 1}) {
        const std::size_t element = owner(cut.begins, cut.counts, p.offset.value + row * m[1] + column);
        ASSERT_EQ(owner(parts.begins, parts.counts, entry(i, row, column)), element)
            << registry[p.param].name << " (" << row << ", " << column << ")";
      }
  }
}

/// Expects that every array of a bucket's codes that may travel is cut as `cut` cuts the elements.
template <class F>
void expect_cut(const ParamRegistry& registry, const Bucket& bucket, const RangesByRank& cut) {
  constexpr FormatId format = formats::id_of<F>;
  Device device(Device::Kind::measuring);
  const Planes planes = Planes::allocated(device, registry, bucket, Travel::codes);
  const auto matrix = [&](std::size_t i) {
    const Shape& m = registry[bucket.members[i].param].member;
    return formats::Matrix{m[0], m[1]};
  };
  expect_packed(registry, bucket, cut, ranges_of_data(cut, format), planes[PlaneKind::rowwise].values.elements(),
                [&](std::size_t i, std::int64_t row, std::int64_t column) {
                  return (bucket.members[i].offset.value + row * matrix(i).columns + column) * F::Element::bits / 8;
                });
  if (!bucket.owns_blocks()) return;
  if (const StoredArray& amax = planes[PlaneKind::amax]; amax && bucket.key.owner == OwnerKind::whole_matrix)
    expect_packed(registry, bucket, cut, ranges_of(bucket, cut, amax, member_densities(bucket)),
                  amax.values.elements(),
                  [](std::size_t i, std::int64_t, std::int64_t) { return static_cast<std::int64_t>(i); });
  if constexpr (!F::scaled) {
    EXPECT_FALSE(static_cast<bool>(block_scales_of(device, registry, bucket)));
  } else if constexpr (F::block.rows == F::block.columns) {
    const StoredArray compact = block_scales_of(device, registry, bucket);
    expect_packed(registry, bucket, cut,
                  ranges_of(bucket, cut, compact, block_scale_densities(registry, bucket)),
                  compact.values.elements(), [&](std::size_t i, std::int64_t row, std::int64_t column) {
                    const formats::Matrix grid = formats::blocks<F>(Side::rowwise, matrix(i));
                    return compact.members[i].first + row / F::block.rows * grid.columns +
                           column / F::block.columns;
                  });
  } else {
    for (const Side side : {Side::rowwise, Side::columnwise}) {
      const StoredArray& scales = planes[scales_of(side)];
      expect_packed(registry, bucket, cut,
                    ranges_of(bucket, cut, scales, scale_densities(registry, bucket, side)),
                    scales.values.elements(), [&](std::size_t i, std::int64_t row, std::int64_t column) {
                      const formats::Block block = formats::block_of<F>(side);
                      return scales.members[i].first +
                             row / block.rows * formats::padded_extent<F>(side, matrix(i)).columns +
                             column / block.columns;
                    });
    }
  }
}

/// Ranks send what is made from the elements that they own: data under any cuts; scales, with padding, under tile cuts.
/// So do the ranks of a sharding group, which keep shards.
TEST(Parts, AreWhatTheSlicesElementsAreMadeInto) {
  std::mt19937 random(9);
  for (const FormatId format : weight_formats())
    for (const int ranks : {3, 5, 6, 12, 48, 96, 256}) {
      const ParamRegistry registry = random_registry(format, random, 2);
      for (const std::int64_t groups : {std::int64_t{1}, divisors(ranks)[1], std::int64_t{ranks}})
        for (LayoutRules how : {rules(ranks, 40000, GatherCuts::flat), rules(ranks, 40000, GatherCuts::tile),
                                LayoutRules{ranks, ranks, 40000, OwnerKind::whole_matrix}}) {
          how.sharding_groups = static_cast<int>(groups);
          const ParamLayout layout = ParamLayout::build(registry, how);
          for (const Bucket& bucket : layout.buckets()) {
            if (!bucket.key.format.codes) continue;
            visit_format(format, [&]<class F>() {
              expect_cut<F>(registry, bucket, {bucket.counts, bucket.begins});
              if (groups > 1) expect_cut<F>(registry, bucket, bucket.shards);
            });
          }
        }
    }
}

/// The slices of a shard, by sharding group, are those of the ranks of its number, and lie beside each other.
TEST(Parts, OfAShardAreTheSlicesOfItsNumber) {
  std::mt19937 random(11);
  for (const int ranks : {4, 6, 12, 24})
    for (const std::int64_t groups : divisors(ranks)) {
      SCOPED_TRACE(test::shown(ranks, groups));
      const ParamRegistry registry = random_registry(weight_formats().front(), random, 2);
      for (LayoutRules how : {rules(ranks, 40000, GatherCuts::flat), rules(ranks, 40000, GatherCuts::tile),
                              LayoutRules{ranks, ranks, 40000, OwnerKind::whole_matrix}}) {
        how.sharding_groups = static_cast<int>(groups);
        const ParamLayout layout = ParamLayout::build(registry, how);
        for (const Bucket& bucket : layout.buckets())
          for (int rank = 0; rank < ranks; ++rank) {
            const Ranks here = Ranks::in_world(ranks, rank, 1, static_cast<int>(groups));
            const RangesByRank& pieces = bucket.pieces[bucket.shard_number(here)];
            const auto group = static_cast<std::size_t>(here.sharding.rank);
            EXPECT_EQ(pieces.counts[group], bucket.slice(here));
            if (bucket.slice(here) > 0) {
              EXPECT_EQ(pieces.begins[group], bucket.slice_begin(here));
            }
            EXPECT_GE(pieces.begins[group], bucket.shard_begin(here));
            EXPECT_LE(pieces.begins[group] + pieces.counts[group], bucket.shard_begin(here) + bucket.shard(here));
            EXPECT_EQ(std::reduce(pieces.counts.begin(), pieces.counts.end()), bucket.shard(here));
          }
      }
    }
}

TEST(Parts, RefuseCutsInsideRowsOfBlocks) {
  const FormatId mxfp8 = formats::id_of<formats::Mxfp8>;
  ParamRegistry registry(TreatmentRules{{.weight = {mxfp8, mxfp8}}});
  const ParamRegistry::InBlock block(registry, 0);
  registry.add({"m", {96, 96}, 1, Role::matrix, {}, {"m", {96, 96}, 0}});
  Device device(Device::Kind::measuring);
  const ParamLayout layout = ParamLayout::build(registry, {5, 5, 1});
  const Bucket& bucket = layout.buckets()[{0}];
  const Planes planes = Planes::allocated(device, registry, bucket, Travel::codes);
  const std::vector<Density> densities = scale_densities(registry, bucket, Side::columnwise);
  const RangesByRank cut{bucket.counts, bucket.begins};
  EXPECT_THROW(ranges_of(bucket, cut, planes[PlaneKind::columnwise_scales], densities), Error);
}

}  // namespace
}  // namespace tessera
