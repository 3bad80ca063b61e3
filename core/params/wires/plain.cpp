#include "core/params/wires/slices.hpp"
#include "core/params/wires/wire.hpp"

namespace tessera {
namespace {

class PlainWire final : public Wire {
 public:
  PlainWire(const WireContext& context, std::span<const WireBucket> buckets)
      : slices_(context.device, context.layout.groups().size(), slices_of(context, buckets)),
        exchanges_(context.layout.groups().size()),
        operands_(context.registry.size()) {
    for (const WireBucket& own : buckets) {
      const Bucket& bucket = context.layout.buckets()[own.id];
      const StoredArray& array = (*own.planes)[PlaneKind::rowwise];
      exchanges_[own.group].push_back({{}, array.values, bucket.counts, bucket.begins});
      for (std::size_t i = 0; i < bucket.members.size(); ++i) {
        const Placement& p = bucket.members[i];
        if (p.member > 0) continue;
        const ParamSpec& spec = context.registry[p.param];
        operands_[p.param] = {array.of(i, 1).view(spec.member), spec.members, context.layout.member_stride(p.param)};
      }
    }
  }

  void measure(Stream&) override {}
  std::span<const Tensor> agreed(ProcessGroup) const override { return {}; }
  void stage(Stream& stream, std::span<const GroupId> groups) override { slices_.round(stream, groups); }
  std::span<const Exchange> exchanges(GroupId group) const override { return exchanges_[group]; }
  void consume(Stream&, GroupId) override {}
  Operand operand(ParamId param, Side) const override { return operands_[param]; }

 private:
  static std::vector<Slices::Slice> slices_of(const WireContext& context, std::span<const WireBucket> buckets) {
    std::vector<Slices::Slice> slices;
    for (const WireBucket& own : buckets) {
      const Tensor& values = (*own.planes)[PlaneKind::rowwise].values;
      slices.push_back({own.group, context.layout.buckets()[own.id].slice(values, context.ranks), own.master});
    }
    return slices;
  }

  Slices slices_;
  IndexedBy<GroupId, std::vector<Exchange>> exchanges_;
  IndexedBy<ParamId, Operand> operands_;
};

}  // namespace

std::unique_ptr<Wire> plain_wire(const WireContext& context, std::span<const WireBucket> buckets) {
  return std::make_unique<PlainWire>(context, buckets);
}

}  // namespace tessera
