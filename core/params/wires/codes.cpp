#include "core/params/wires/codes.hpp"

#include <algorithm>
#include <iterator>

#include "core/config/travel.hpp"

namespace tessera {
namespace {

/// A tensor of the whole array, given memory for only its entries from `begin` on, in `part`. Entries outside of the
/// part must not be accessed.
Tensor whole_around(const Tensor& part, std::int64_t begin, const Shape& whole) {
  const auto bytes = static_cast<std::uintptr_t>(begin * size_of(part.type));
  const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(part.data) - bytes;
  return {reinterpret_cast<void*>(address), part.type, whole};
}

/// The ranges of the packed amaxes on which one process group agrees; neighbouring ranges are joined.
class Agreement {
 public:
  explicit Agreement(const Tensor& bits) : bits_(bits) {}

  void add(std::int64_t first, std::int64_t end) {
    if (first == end) return;
    if (!ranges_.empty() && end_ == first) {
      Tensor& last = ranges_.back();
      last = {last.data, last.type, Shape{last.elements() + end - first}};
    } else {
      ranges_.push_back(bits_.flat(first, end - first));
    }
    end_ = end;
  }
  std::vector<Tensor> ranges() && { return std::move(ranges_); }

 private:
  Tensor bits_;
  std::vector<Tensor> ranges_;
  std::int64_t end_ = 0;  ///< end of the last range
};

/// The buckets with dense parameters before experts, so that what a process group agrees on makes few ranges.
std::vector<WireBucket> by_processes(const WireContext& context, std::span<const WireBucket> buckets) {
  std::vector<WireBucket> sorted(buckets.begin(), buckets.end());
  std::ranges::stable_sort(sorted, {}, [&](const WireBucket& own) { return context.bucket(own).key.processes; });
  return sorted;
}

RangesByRank ranges_of_kind(const WireContext& context, const Bucket& bucket, const RangesByRank& cut, PlaneKind kind,
                            const StoredArray& whole) {
  switch (kind) {
    case PlaneKind::rowwise_scales:
    case PlaneKind::columnwise_scales: {
      const Side side = kind == PlaneKind::rowwise_scales ? Side::rowwise : Side::columnwise;
      return ranges_of(bucket, cut, whole, scale_densities(context.registry, bucket, side));
    }
    case PlaneKind::block_scales:
      return ranges_of(bucket, cut, whole, block_scale_densities(context.registry, bucket));
    case PlaneKind::amax: return ranges_of(bucket, cut, whole, member_densities(bucket));
    default: return ranges_of_data(cut, *bucket.key.format.codes);
  }
}

/// Adds the all-gathers of an array in the only place of its group, at both levels.
void add_in_place(const WireContext& context, const WireBucket& own, PlaneKind kind, const StoredArray& array,
                  Exchanges& exchanges) {
  const Bucket& bucket = context.bucket(own);
  if (const RangesByRank pieces = context.pieces(bucket); !pieces.counts.empty())
    exchanges.add_across(own.group, array.values, ranges_of_kind(context, bucket, pieces, kind, array));
  exchanges.add(own.group, array.values, ranges_of_kind(context, bucket, bucket.shards, kind, array));
}

void require_one_owner(const Bucket& bucket) {
  require(bucket.owns_blocks(), "CodeShards", "blocks that are quantized by their owners have one owner each");
}

}  // namespace

CodeShards::CodeShards(const WireContext& context, FormatId format, std::span<const WireBucket> buckets,
                       Exchanges& exchanges)
    : format_(format), buckets_(by_processes(context, buckets)) {
  if (buckets.front().shard_apart())
    apart(context, exchanges);
  else if (both_travel())
    in_slots(context, exchanges);
  else
    cast(context, exchanges);
}

/// Blocks of one owner whose shards are views into the only place: data and scales of both copies travel.
void CodeShards::in_slots(const WireContext& context, Exchanges& exchanges) {
  std::vector<QuantizedMatrix> owned;
  for (const WireBucket& own : buckets_) {
    const Planes& planes = own.places.front();
    std::ranges::move(owned_matrices_of(context, own, planes), std::back_inserter(owned));
    const Bucket& bucket = context.bucket(own);
    require_one_owner(bucket);
    for (const Side side : {Side::rowwise, Side::columnwise})
      for (const PlaneKind kind : {data_of(format_, side), scales_of(side)})
        add_in_place(context, own, kind, planes[kind], exchanges);
  }
  owned_ = placed(context.device, QuantizeTable(format_, owned));
}

/// Blocks of one owner whose shards have memory of their own. Codes and scales travel at each visit, of both copies or
/// of one from which the other is derived. Members may have several owners, who agree on the amaxes of tensors.
void CodeShards::apart(const WireContext& context, Exchanges& exchanges) {
  if (traits_of(format_).tensor_amax) members_.emplace(context, buckets_);
  std::vector<QuantizedMatrix> owned;
  for (std::size_t i = 0; i < buckets_.size(); ++i)
    std::ranges::move(keep(context, i, exchanges), std::back_inserter(owned));
  owned_ = placed(context.device, QuantizeTable(format_, owned));
  for (const ProcessGroup processes : process_groups)
    if (members_ && members_->bits(processes).elements() > 0)
      agreed_[static_cast<std::size_t>(processes)] = {members_->bits(processes)};
}

/// Allocates memory for this rank's shard of a bucket's arrays that travel, and adds their all-gathers. Returns the
/// table entries that quantize into it what this rank owns.
std::vector<QuantizedMatrix> CodeShards::keep(const WireContext& context, std::size_t number,
                                              Exchanges& exchanges) const {
  const WireBucket& own = buckets_[number];
  const Bucket& bucket = context.bucket(own);
  require_one_owner(bucket);
  const std::size_t shard = bucket.shard_number(context.ranks);
  const RangesByRank pieces = context.pieces(bucket);
  const auto place = [&](PlaneKind kind, DType type, const Shape& shape) {
    if (kind == PlaneKind::amax) return members_->mine(number, shape.elements());
    if (!both_travel() && kind != PlaneKind::rowwise && kind != PlaneKind::block_scales) return Tensor{};
    const StoredArray& whole = own.places.front()[kind];
    const RangesByRank& parts = exchanges.keep(ranges_of_kind(context, bucket, bucket.shards, kind, whole));
    const std::int64_t begin = parts.begins[shard];
    const Tensor kept = context.device.allocate(Category::weights, type, {parts.counts[shard]});
    clear(context.device.compute(), kept);  // gaps stay zeros
    if (!pieces.counts.empty())
      exchanges.add_across(own.group, kept,
                           counted_from(begin, ranges_of_kind(context, bucket, pieces, kind, whole)));
    const bool columns = kind == PlaneKind::columnwise || kind == PlaneKind::columnwise_scales;
    for (std::size_t slot = 0; slot < own.places.size(); ++slot)
      exchanges.add(own.group, {static_cast<int>(slot), columns ? Sides::columnwise : Sides::rowwise},
                    {kept, own.places[slot][kind].values, parts.counts, parts.begins});
    return whole_around(kept, begin, shape);
  };
  const Planes window(context.registry, bucket, Travel::codes, place);
  std::vector<QuantizedMatrix> matrices = owned_matrices_of(context, own, window, window[PlaneKind::block_scales]);
  for (QuantizedMatrix& matrix : matrices) {
    matrix.buffers = Buffers::owned;
    if (!both_travel()) matrix.columnwise = {};
  }
  return matrices;
}

/// Blocks that may have several owners, whose shards are views into the only place. Rowwise codes travel, and scales of
/// those buckets whose blocks have one owner.
void CodeShards::cast(const WireContext& context, Exchanges& exchanges) {
  const bool one_owner = blocks_have_one_owner(format_);
  for (const WireBucket& own : buckets_) {
    if (one_owner) require_one_owner(context.bucket(own));
    block_scales_.push_back(context.bucket(own).owns_blocks()
                                ? block_scales_of(context.device, context.registry, context.bucket(own))
                                : StoredArray());
  }
  cast_.emplace(context.device, shards(context));
  agree(context);
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    const Bucket& bucket = context.bucket(buckets_[i]);
    const auto travels = [&](PlaneKind kind, const StoredArray& array) {
      add_in_place(context, buckets_[i], kind, array, exchanges);
    };
    const Planes& planes = buckets_[i].places.front();
    travels(PlaneKind::rowwise, planes[PlaneKind::rowwise]);
    if (block_scales_[i]) travels(PlaneKind::block_scales, block_scales_[i]);
    const StoredArray& amax = planes[PlaneKind::amax];
    // mutation: amax_stays_with_its_owner
    if (amax && bucket.key.owner == OwnerKind::whole_matrix) travels(PlaneKind::amax, amax);
  }
}

std::vector<ShardedWeight> CodeShards::shards(const WireContext& context) const {
  std::vector<ShardedWeight> shards;
  for (std::size_t i = 0; i < buckets_.size(); ++i)
    for (QuantizedMatrix& matrix :
         owned_matrices_of(context, buckets_[i], buckets_[i].places.front(), block_scales_[i])) {
      if (traits_of(format_).chooses) matrix.columnwise = {};  // is derived after the gather
      shards.push_back({format_, std::move(matrix)});
    }
  return shards;
}

/// Lists the amaxes to agree on: of blocks, if a block may have several owners; of members, if a member may.
void CodeShards::agree(const WireContext& context) {
  const QuantizeTable& table = cast_->tables().front();
  const Tensor bits = cast_->agreed_bits();
  for (const ProcessGroup processes : process_groups) {
    Agreement blocks(bits), members(bits);
    std::size_t matrix = 0;
    for (const WireBucket& own : buckets_) {
      const Bucket& bucket = context.bucket(own);
      const std::size_t first = matrix;
      matrix += static_cast<std::size_t>(std::ranges::distance(bucket.parameters()));
      if (bucket.key.processes != processes) continue;
      if (!bucket.owns_blocks()) blocks.add(table.first_block(first), table.first_block(matrix));
      if (bucket.key.owner == OwnerKind::element_sharded)  // mutation: amax_of_own_part
        members.add(table.first_member(first), table.first_member(matrix));
    }
    std::vector<Tensor>& all = agreed_[static_cast<std::size_t>(processes)];
    all = std::move(blocks).ranges();
    for (const Tensor& range : std::move(members).ranges()) all.push_back(range);
  }
}

void CodeShards::measure_amaxes(Stream& stream) const {
  if (cast_) return measure_master_weights(stream, *cast_);
  if (!members_) return;
  members_->restart(stream);
  find_amax(stream, *owned_);
  members_->offer(stream);
}

void CodeShards::stage(Stream& stream, std::span<const GroupId> groups) const {
  for (const WireBucket& own : buckets_)
    require(std::ranges::find(groups, own.group) != groups.end(), "CodeShards", "quantizes all its groups at once");
  if (cast_) return write_master_weights(stream, *cast_);
  if (!members_) return quantize(stream, *owned_);
  members_->accept(stream);
  quantize_with_amax(stream, *owned_);
}

std::optional<DerivedArrays> CodeShards::derived(const WireContext& context) const {
  if (both_travel()) return std::nullopt;
  const auto matrices = [&](std::size_t place, std::size_t i) {
    const Planes& planes = buckets_[i].places[place];
    return matrices_of(context, buckets_[i], planes, cast_ ? block_scales_[i] : planes[PlaneKind::block_scales]);
  };
  return DerivedArrays(context, format_, buckets_, DerivedFrom::codes, matrices);
}

}  // namespace tessera
