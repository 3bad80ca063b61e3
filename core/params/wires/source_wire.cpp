#include "core/params/placed_table.hpp"
#include "core/params/wires/coded.hpp"
#include "core/params/wires/slices.hpp"

namespace tessera {
namespace {

class SourceWire final : public CodedWire {
 public:
  SourceWire(const WireContext& context, std::span<const WireBucket> buckets)
      : CodedWire(context, buckets),
        slices_(context.device, context.layout.groups().size(), slices_of(context, buckets)),
        gathered_(context.layout.groups().size()) {
    IndexedBy<GroupId, std::vector<QuantizedMatrix>> matrices(gathered_.size());
    for (const WireBucket& own : buckets) {
      const Bucket& bucket = context.layout.buckets()[own.id];
      travels(own, own.staged, {bucket.counts, bucket.begins});
      std::vector<QuantizedMatrix> whole = matrices_of(own, own.places.front());
      auto matrix = whole.begin();
      for (const Placement& p : bucket.parameters()) {
        matrix->values = own.staged.flat(p.offset.value, positions_of(*matrix));
        matrices[own.group].push_back(std::move(*matrix++));
      }
    }
    for (GroupId group : matrices.ids())
      if (!matrices[group].empty()) gathered_[group] = placed_table(context.device, format(), matrices[group]);
  }

  void measure(Stream&) override {}
  std::span<const Tensor> agreed(ProcessGroup) const override { return {}; }
  void stage(Stream& stream, std::span<const GroupId> groups) override { slices_.round(stream, groups); }
  void consume(Stream& stream, GroupId group, const Held&) override {
    if (gathered_[group]) quantize(stream, *gathered_[group]);
  }

 private:
  static std::vector<Slices::Slice> slices_of(const WireContext& context, std::span<const WireBucket> buckets) {
    std::vector<Slices::Slice> slices;
    for (const WireBucket& own : buckets)
      slices.push_back(
          {own.group, own.id, context.layout.buckets()[own.id].slice(own.staged, context.ranks), own.master});
    return slices;
  }

  Slices slices_;
  IndexedBy<GroupId, std::optional<QuantizeTable>> gathered_;
};

}  // namespace

std::unique_ptr<Wire> source_wire(const WireContext& context, std::span<const WireBucket> buckets) {
  return std::make_unique<SourceWire>(context, buckets);
}

}  // namespace tessera
