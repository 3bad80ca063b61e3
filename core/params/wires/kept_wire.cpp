#include <algorithm>

#include "core/params/placed_table.hpp"
#include "core/params/wires/coded.hpp"
#include "kernels/convert/convert.hpp"

namespace tessera {
namespace {

/// A tensor of the whole array, given memory for only its entries from `begin` on, in `part`. Entries outside of the
/// part must not be accessed.
Tensor whole_around(const Tensor& part, std::int64_t begin, const Shape& whole) {
  const auto bytes = static_cast<std::uintptr_t>(begin * size_of(part.type));
  const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(part.data) - bytes;
  return {reinterpret_cast<void*>(address), part.type, whole};
}

/// Amaxes of members, bucket by bucket: this rank's own, those agreed on, and the copies that products read.
class MemberAmaxes {
 public:
  MemberAmaxes(const WireContext& context, std::span<const WireBucket> buckets) {
    for (const WireBucket& own : buckets) {
      const Bucket& bucket = context.layout.buckets()[own.id];
      begins_.push_back(end_);
      end_ += std::ssize(bucket.members);
      if (bucket.key.processes == ProcessGroup::dense) dense_ = end_;
    }
    mine_ = context.device.allocate(Category::staging, DType::f32, {end_});
    agreed_ = context.device.allocate(Category::staging, DType::bf16, {end_});
    std::vector<ConvertTable::Pair> pairs{{mine_, agreed_}};
    for (std::size_t i = 0; i < buckets.size(); ++i) {
      const Tensor& read = buckets[i].places.front()[PlaneKind::amax].values;
      pairs.push_back({read, agreed_.flat(begins_[i], read.elements())});
    }
    table_.emplace(pairs);
    const Tensor memory = context.device.allocate(Category::weights, DType::u8, {table_->bytes()});
    context.device.upload(context.device.compute(), memory, table_->image());
    table_->place(memory);
  }

  Tensor mine(std::size_t bucket, std::int64_t members) const { return mine_.flat(begins_[bucket], members); }
  void restart(Stream& stream) const { clear(stream, mine_); }
  /// Writes this rank's amaxes as bf16 for the agreement; exact, since they are amaxes of bf16 values.
  void offer(Stream& stream) const { convert(stream, agreed_, mine_); }
  void accept(Stream& stream) const { convert(stream, *table_, 0, table_->pairs()); }
  /// The part of a process group, as u16 bits for a maximum over ranks.
  Tensor bits(ProcessGroup processes) const {
    const Tensor bits{agreed_.data, DType::u16, agreed_.shape};
    return processes == ProcessGroup::dense ? bits.flat(0, dense_) : bits.flat(dense_, end_ - dense_);
  }

 private:
  std::vector<std::int64_t> begins_;
  std::int64_t dense_ = 0, end_ = 0;
  Tensor mine_, agreed_;
  std::optional<ConvertTable> table_;
};

class KeptWire final : public CodedWire {
 public:
  /// `buckets` must be in the order of by_processes().
  KeptWire(const WireContext& context, std::span<const WireBucket> buckets)
      : CodedWire(context, buckets), apart_(traits_of(format()).columnwise == formats::Columnwise::requantized) {
    if (traits_of(format()).tensor_amax) amaxes_.emplace(context, buckets);
    std::vector<QuantizedMatrix> owned;
    for (std::size_t i = 0; i < buckets.size(); ++i)
      for (QuantizedMatrix& matrix : keep(buckets[i], i)) owned.push_back(std::move(matrix));
    owned_ = placed_table(context.device, format(), owned);
    for (const ProcessGroup processes : process_groups)
      if (amaxes_ && amaxes_->bits(processes).elements() > 0)
        agreed_[static_cast<std::size_t>(processes)] = {amaxes_->bits(processes)};
    if (!apart_)
      for (int place = 0; place < std::ssize(buckets.front().places); ++place) derive_in(buckets, place);
  }

  void measure(Stream& stream) override {
    if (!amaxes_) return;
    amaxes_->restart(stream);
    find_amax(stream, *owned_);
    amaxes_->offer(stream);
  }
  std::span<const Tensor> agreed(ProcessGroup processes) const override {
    return agreed_[static_cast<std::size_t>(processes)];
  }
  void stage(Stream& stream, std::span<const GroupId> groups) override {
    for (GroupId group : context_.layout.groups().ids())
      require(exchanges(group, {}).empty() || std::ranges::find(groups, group) != groups.end(), "KeptWire",
              "quantizes all its groups at once");
    if (!amaxes_) return quantize(stream, *owned_);
    amaxes_->accept(stream);
    quantize_with_amax(stream, *owned_);
  }
  void consume(Stream& stream, GroupId group, const Held& held) override {
    const auto slot = static_cast<std::size_t>(held.place);
    if (held.sides == Sides::none || slot >= derived_.size()) return;  // nothing to derive, or another wire's slot
    if (const std::optional<QuantizeTable>& table = derived_[slot][group]) build_columnwise(stream, *table);
  }

 private:
  Parts parts_of_kind(const Bucket& bucket, PlaneKind kind, const StoredArray& whole) const {
    switch (kind) {
      case PlaneKind::rowwise_scales:
      case PlaneKind::columnwise_scales: {
        const Side side = kind == PlaneKind::rowwise_scales ? Side::rowwise : Side::columnwise;
        return parts_of(bucket, whole, scale_densities(context_.registry, bucket, side));
      }
      case PlaneKind::block_scales:
        return parts_of(bucket, whole, block_scale_densities(context_.registry, bucket));
      default: return parts_of_data(bucket, format());
    }
  }
  bool travels_itself(PlaneKind kind) const {
    if (apart_) return true;
    return kind == PlaneKind::rowwise || kind == PlaneKind::block_scales;
  }

  /// Allocates memory for this rank's part of a bucket's arrays that travel, and registers their all-gathers. Returns
  /// the table entries that quantize into it.
  std::vector<QuantizedMatrix> keep(const WireBucket& own, std::size_t number) {
    const Bucket& bucket = context_.layout.buckets()[own.id];
    require(bucket.owns_blocks(), "KeptWire", "takes buckets whose blocks have one owner each");
    const auto rank = static_cast<std::size_t>(context_.ranks.of(bucket.key.processes).rank);
    const auto place = [&](PlaneKind kind, DType type, const Shape& shape) {
      if (kind == PlaneKind::amax) return amaxes_->mine(number, shape.elements());
      if (!travels_itself(kind)) return Tensor{};
      const Parts& parts = kept_parts_.emplace_back(parts_of_kind(bucket, kind, own.places.front()[kind]));
      const Tensor kept = context_.device.allocate(Category::weights, type, {parts.counts[rank]});
      clear(context_.device.compute(), kept);  // gaps stay zeros
      const bool columns = kind == PlaneKind::columnwise || kind == PlaneKind::columnwise_scales;
      for (std::size_t slot = 0; slot < own.places.size(); ++slot)
        travels(own, {static_cast<int>(slot), columns ? Sides::columnwise : Sides::rowwise}, kept,
                own.places[slot][kind].values, parts);
      return whole_around(kept, parts.begins[rank], shape);
    };
    const Planes window(context_.registry, bucket, Travel::codes, place);
    std::vector<QuantizedMatrix> matrices = owned_matrices_of(own, window, window[PlaneKind::block_scales]);
    for (QuantizedMatrix& matrix : matrices) {
      matrix.buffers = Buffers::owned;
      if (!apart_) matrix.columnwise = {};
    }
    return matrices;
  }

  /// Makes the tables for the work after an all-gather into one place, which derives the columnwise copy.
  void derive_in(std::span<const WireBucket> buckets, int place) {
    const auto slot = static_cast<std::size_t>(place);
    IndexedBy<GroupId, std::vector<QuantizedMatrix>> matrices(context_.layout.groups().size());
    for (const WireBucket& own : buckets)
      for (QuantizedMatrix& matrix : matrices_of(own, own.places[slot], own.places[slot][PlaneKind::block_scales]))
        matrices[own.group].push_back(std::move(matrix));
    auto& derived = derived_.emplace_back(matrices.size());
    for (GroupId group : matrices.ids())
      if (!matrices[group].empty()) derived[group] = placed_table(context_.device, format(), matrices[group]);
  }

  bool apart_;  ///< the two copies travel apart: neither can be derived from the other
  std::deque<Parts> kept_parts_;
  std::optional<MemberAmaxes> amaxes_;
  std::optional<QuantizeTable> owned_;
  std::array<std::vector<Tensor>, 2> agreed_;
  std::vector<IndexedBy<GroupId, std::optional<QuantizeTable>>> derived_;  ///< by place
};

}  // namespace

std::unique_ptr<Wire> kept_wire(const WireContext& context, std::span<const WireBucket> buckets) {
  return std::make_unique<KeptWire>(context, by_processes(context, buckets));
}

}  // namespace tessera
