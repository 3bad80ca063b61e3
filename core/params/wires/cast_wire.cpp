#include <algorithm>

#include "core/params/cast.hpp"
#include "core/params/placed_table.hpp"
#include "core/params/wires/coded.hpp"

namespace tessera {
namespace {

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

class CastWire final : public CodedWire {
 public:
  /// `buckets` must be in the order of by_processes().
  CastWire(const WireContext& context, std::span<const WireBucket> buckets)
      : CodedWire(context, buckets),
        block_scales_(block_scales(context, buckets)),
        shards_(context.device, shards_of(buckets)),
        gathered_(context.layout.groups().size()) {
    agree(buckets);
    for (std::size_t i = 0; i < buckets.size(); ++i) send(buckets[i], block_scales_[i]);
    build_tables(buckets);
  }

  void measure(Stream& stream) override { measure_master_weights(stream, shards_); }
  std::span<const Tensor> agreed(ProcessGroup processes) const override {
    return agreed_[static_cast<std::size_t>(processes)];
  }
  void stage(Stream& stream, std::span<const GroupId> groups) override {
    const auto own = std::ranges::count_if(groups, [this](GroupId group) { return gathered_[group].has_value(); });
    require(own == groups_, "CastWire", "casts all its groups at once, by what all ranks agreed on");
    write_master_weights(stream, shards_);
  }
  void consume(Stream& stream, GroupId group, const Held&) override {
    if (gathered_[group]) build_columnwise(stream, *gathered_[group]);
  }

 private:
  static std::vector<StoredArray> block_scales(const WireContext& context, std::span<const WireBucket> buckets) {
    std::vector<StoredArray> arrays;
    for (const WireBucket& own : buckets) {
      const Bucket& bucket = context.layout.buckets()[own.id];
      arrays.push_back(bucket.owns_blocks() ? block_scales_of(context.device, context.registry, bucket)
                                            : StoredArray());
    }
    return arrays;
  }

  std::vector<ShardedWeight> shards_of(std::span<const WireBucket> buckets) const {
    std::vector<ShardedWeight> shards;
    for (std::size_t i = 0; i < buckets.size(); ++i)
      for (QuantizedMatrix& matrix : owned_matrices_of(buckets[i], buckets[i].places.front(), block_scales_[i]))
        shards.push_back({format(), std::move(matrix)});
    return shards;
  }

  /// Lists the amaxes to agree on: of blocks, if a block may have several owners; of members, if a member may.
  void agree(std::span<const WireBucket> buckets) {
    const QuantizeTable& table = shards_.tables().front();
    const Tensor bits = shards_.agreed_bits();
    for (const ProcessGroup processes : process_groups) {
      Agreement blocks(bits), members(bits);
      std::size_t matrix = 0;
      for (const WireBucket& own : buckets) {
        const Bucket& bucket = context_.layout.buckets()[own.id];
        const std::size_t first = matrix;
        matrix += static_cast<std::size_t>(std::ranges::distance(bucket.parameters()));
        if (bucket.key.processes != processes) continue;
        if (!bucket.owns_blocks()) blocks.add(table.first_block(first), table.first_block(matrix));
        if (bucket.key.owner == OwnerKind::element_sharded)
          members.add(table.first_member(first), table.first_member(matrix));
      }
      std::vector<Tensor>& all = agreed_[static_cast<std::size_t>(processes)];
      all = std::move(blocks).ranges();
      for (const Tensor& range : std::move(members).ranges()) all.push_back(range);
    }
  }

  void send(const WireBucket& own, const StoredArray& scales) {
    const Bucket& bucket = context_.layout.buckets()[own.id];
    travels(own, own.places.front()[PlaneKind::rowwise].values, parts_of_data(bucket, format()));
    if (scales)
      travels(own, scales.values, parts_of(bucket, scales, block_scale_densities(context_.registry, bucket)));
    const StoredArray& amax = own.places.front()[PlaneKind::amax];
    if (amax && bucket.key.owner == OwnerKind::whole_matrix)
      travels(own, amax.values, parts_of(bucket, amax, member_densities(bucket)));
  }

  void build_tables(std::span<const WireBucket> buckets) {
    IndexedBy<GroupId, std::vector<QuantizedMatrix>> matrices(gathered_.size());
    for (std::size_t i = 0; i < buckets.size(); ++i)
      for (QuantizedMatrix& matrix : matrices_of(buckets[i], buckets[i].places.front(), block_scales_[i]))
        matrices[buckets[i].group].push_back(std::move(matrix));
    for (GroupId group : matrices.ids()) {
      if (matrices[group].empty()) continue;
      gathered_[group] = placed_table(context_.device, format(), matrices[group]);
      ++groups_;
    }
  }

  std::vector<StoredArray> block_scales_;  ///< by bucket; empty if all ranks compute the scales themselves
  ShardedWeights shards_;
  IndexedBy<GroupId, std::optional<QuantizeTable>> gathered_;
  std::int64_t groups_ = 0;  ///< number of groups that have a table
  std::array<std::vector<Tensor>, 2> agreed_;
};

}  // namespace

std::unique_ptr<Wire> cast_wire(const WireContext& context, std::span<const WireBucket> buckets) {
  return std::make_unique<CastWire>(context, by_processes(context, buckets));
}

}  // namespace tessera
