#include "core/params/wires/rounded.hpp"

#include <algorithm>
#include <utility>

#include "core/params/placed_table.hpp"

namespace tessera {
namespace {

/// The plain values of a bucket that are gathered: its weights in one place, or the bf16 that is staged.
const Tensor& gathered(Travel travel, const WireBucket& own, std::size_t place) {
  return travel == Travel::plain ? own.places[place][PlaneKind::rowwise].values : own.staged;
}

}  // namespace

RoundedShards::RoundedShards(const WireContext& context, Travel travel, std::span<const WireBucket> buckets,
                             Exchanges& exchanges)
    : claimable_(travel == Travel::plain && gathered(travel, buckets.front(), 0).type == DType::bf16),
      slices_(slices_of(context, travel, buckets, exchanges)),
      claimed_(slices_.size()),
      table_([&] {
        std::vector<ConvertTable::Pair> pairs;
        for (const Slice& slice : slices_) pairs.push_back({slice.to, slice.master});
        return placed(context.device, ConvertTable(pairs));
      }()),
      ranges_(context.layout.groups().size()) {
  int pairs = 0;
  for (const Slice& slice : slices_) {
    Range& range = ranges_[slice.group];
    if (range.first == range.last) range.first = pairs;
    range.last = ++pairs;
  }
}

/// Lists what is staged of each bucket, and its all-gathers: a slice of the whole values, or one in its own memory.
std::vector<RoundedShards::Slice> RoundedShards::slices_of(const WireContext& context, Travel travel,
                                                           std::span<const WireBucket> buckets,
                                                           Exchanges& exchanges) {
  std::vector<Slice> slices;
  for (const WireBucket& own : buckets) {
    const Bucket& bucket = context.bucket(own);
    const Tensor& whole = gathered(travel, own, 0);
    const Shape size{bucket.shard(context.ranks)};
    const Tensor kept =
        own.shard_apart() ? context.device.allocate(Category::weights, whole.type, size) : Tensor{};
    const std::int64_t begin = own.shard_apart() ? bucket.shard_begin(context.ranks) : 0;
    const Tensor& shards = own.shard_apart() ? kept : whole;  // from element `begin` of the bucket on
    const std::int64_t slice = bucket.slice(context.ranks);
    const std::int64_t at = slice > 0 ? bucket.slice_begin(context.ranks) - begin : 0;
    slices.push_back(  // mutation: owned_matrices_are_never_staged
        {own.group, own.id, shards.flat(at, slice), own.master});
    if (RangesByRank pieces = context.pieces(bucket); !pieces.counts.empty())
      exchanges.add_across(own.group, shards, counted_from(begin, std::move(pieces)));
    for (std::size_t place = 0; place < own.places.size(); ++place)
      exchanges.add(own.group, {static_cast<int>(place), Sides::none},
                    {kept, gathered(travel, own, place), bucket.shards.counts, bucket.shards.begins});
  }
  return slices;
}

Tensor RoundedShards::claim(BucketId bucket) {
  if (!claimable_) return {};
  const auto slice = std::ranges::find(slices_, bucket, &Slice::bucket);
  require(slice != slices_.end(), "RoundedShards", "holds no slice of this bucket");
  claimed_[static_cast<std::size_t>(slice - slices_.begin())] = true;  // mutation: weights_of_an_update_rounded_again
  return slice->to;
}

bool RoundedShards::wanted(const Range& range) const {
  return std::find(claimed_.begin() + range.first, claimed_.begin() + range.last, false) !=
         claimed_.begin() + range.last;
}

void RoundedShards::stage(Stream& stream, std::span<const GroupId> groups) {
  for (GroupId group : groups) ranges_[group].wanted = wanted(ranges_[group]);
  int first = 0, last = 0;
  for (Range& range : ranges_) {
    if (!std::exchange(range.wanted, false)) continue;
    if (range.first != last) {
      convert(stream, table_, first, last);
      first = range.first;
    }
    last = range.last;
  }
  convert(stream, table_, first, last);
}

}  // namespace tessera
