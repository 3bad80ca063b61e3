#include "core/params/wires/exchanges.hpp"
#include "core/params/wires/slices.hpp"
#include "core/params/wires/wire.hpp"

namespace tessera {
namespace {

class PlainWire final : public Wire {
 public:
  PlainWire(const WireContext& context, std::span<const WireBucket> buckets)
      : slices_(context.device, context.layout.groups().size(), slices_of(context, buckets)),
        exchanges_(context.layout, buckets.front().places.size()),
        operands_(buckets.front().places.size(), IndexedBy<ParamId, Operand>(context.registry.size())),
        rounds_(buckets.front().places.front()[PlaneKind::rowwise].values.type == DType::bf16) {
    for (std::size_t b = 0; b < buckets.size(); ++b)
      for (std::size_t place = 0; place < operands_.size(); ++place) {
        const Bucket& bucket = context.layout.buckets()[buckets[b].id];
        const StoredArray& whole = buckets[b].places[place][PlaneKind::rowwise];
        exchanges_.add(buckets[b].group, {static_cast<int>(place), Sides::none},
                       {kept_[b], whole.values, bucket.counts, bucket.begins});
        add_operands(context, bucket, whole, operands_[place]);
      }
  }

  Tensor claim(BucketId bucket) override { return rounds_ ? slices_.claim(bucket) : Tensor{}; }
  void release_claims() override { slices_.release_claims(); }
  void measure(Stream&) override {}
  std::span<const Tensor> agreed(ProcessGroup) const override { return {}; }
  void stage(Stream& stream, std::span<const GroupId> groups) override { slices_.round(stream, groups); }
  std::span<Exchange> exchanges(GroupId group, const Held& held) override { return exchanges_.of(group, held); }
  void consume(Stream&, GroupId, const Held&) override {}
  Operand operand(ParamId param, Side, int place) const override {
    return operands_[static_cast<std::size_t>(place)][param];
  }

 private:
  /// The part of each bucket that is staged: the slice that this rank keeps, or its slice of the whole weights.
  std::vector<Slices::Slice> slices_of(const WireContext& context, std::span<const WireBucket> buckets) {
    std::vector<Slices::Slice> slices;
    for (const WireBucket& own : buckets) {
      const Bucket& bucket = context.layout.buckets()[own.id];
      const Tensor& whole = own.places.front()[PlaneKind::rowwise].values;
      const Shape slice{bucket.slice(context.ranks)};
      kept_.push_back(own.shard_apart() ? context.device.allocate(Category::weights, whole.type, slice) : Tensor{});
      slices.push_back(
          {own.group, own.id, own.shard_apart() ? kept_.back() : bucket.slice(whole, context.ranks), own.master});
    }
    return slices;
  }

  static void add_operands(const WireContext& context, const Bucket& bucket, const StoredArray& whole,
                           IndexedBy<ParamId, Operand>& operands) {
    for (const Placement& p : bucket.parameters()) {
      const ParamSpec& spec = context.registry[p.param];
      operands[p.param] = {whole.of(bucket.index_of(p), 1).view(spec.member), spec.members,
                           context.layout.member_stride(p.param)};
    }
  }

  std::vector<Tensor> kept_;  ///< by bucket: the slice that this rank keeps; else empty
  Slices slices_;
  Exchanges exchanges_;
  std::vector<IndexedBy<ParamId, Operand>> operands_;  ///< by place
  bool rounds_;                                        ///< whether the weights are bf16
};

}  // namespace

std::unique_ptr<Wire> plain_wire(const WireContext& context, std::span<const WireBucket> buckets) {
  return std::make_unique<PlainWire>(context, buckets);
}

}  // namespace tessera
