#include <utility>

#include "core/params/wires/wire.hpp"
#include "kernels/convert/convert.hpp"

namespace tessera {
namespace {

class PlainWire final : public Wire {
 public:
  PlainWire(Device& device, const ParamRegistry& registry, const ParamLayout& layout, const Ranks& ranks,
            std::span<const WireBucket> buckets)
      : slices_(pairs_of(layout, ranks, buckets)), groups_(layout.groups().size()), operands_(registry.size()) {
    const Tensor memory = device.allocate(Category::weights, DType::u8, {slices_.bytes()});
    device.upload(device.compute(), memory, slices_.image());
    slices_.place(memory);
    int pairs = 0;
    for (const WireBucket& own : buckets) {
      const Bucket& bucket = layout.buckets()[own.id];
      Group& group = groups_[own.group];
      if (group.exchanges.empty()) group.first = pairs;
      group.last = ++pairs;
      group.exchanges.push_back({{}, own.planes.values, bucket.counts, bucket.begins});
      for (const Placement& p : bucket.members) {
        if (p.member > 0) continue;
        const ParamSpec& spec = registry[p.param];
        const Tensor first = own.planes.values.flat(p.offset.value, spec.member_elements());
        operands_[p.param] = {first.view(spec.member), spec.members, layout.member_stride(p.param)};
      }
    }
  }

  void measure(Stream&) override {}
  Tensor agreed(ProcessGroup) const override { return {}; }

  /// One launch for each run of neighbours in the table, which all groups together are.
  void stage(Stream& stream, std::span<const GroupId> groups) override {
    for (GroupId group : groups) groups_[group].wanted = groups_[group].first < groups_[group].last;
    int first = 0, last = 0;
    for (Group& group : groups_) {
      if (!std::exchange(group.wanted, false)) continue;
      if (group.first != last) {
        convert(stream, slices_, first, last);
        first = group.first;
      }
      last = group.last;
    }
    convert(stream, slices_, first, last);
  }

  std::span<const Exchange> exchanges(GroupId group) const override { return groups_[group].exchanges; }
  void consume(Stream&, GroupId) override {}
  Operand operand(ParamId param, Side) const override { return operands_[param]; }

 private:
  struct Group {
    std::vector<Exchange> exchanges;
    int first = 0, last = 0;  ///< its pairs in the table
    bool wanted = false;
  };

  static ConvertTable pairs_of(const ParamLayout& layout, const Ranks& ranks, std::span<const WireBucket> buckets) {
    std::vector<ConvertTable::Pair> pairs;
    for (const WireBucket& own : buckets)
      pairs.push_back({layout.buckets()[own.id].slice(own.planes.values, ranks), own.master});
    return ConvertTable(pairs);
  }

  ConvertTable slices_;  ///< this rank's, from its masters: bucket by bucket, group by group
  IndexedBy<GroupId, Group> groups_;
  IndexedBy<ParamId, Operand> operands_;
};

}  // namespace

Planes::Planes(Device& device, const Bucket& bucket)
    : values(device.allocate(Category::weights, bucket.key.format.plain, {bucket.size.value})) {}

std::unique_ptr<Wire> plain_wire(Device& device, const ParamRegistry& registry, const ParamLayout& layout,
                                 const Ranks& ranks, std::span<const WireBucket> buckets) {
  return std::make_unique<PlainWire>(device, registry, layout, ranks, buckets);
}

}  // namespace tessera
