#include <algorithm>

#include "core/params/placed_table.hpp"
#include "core/params/wires/coded.hpp"

namespace tessera {
namespace {

class TileWire final : public CodedWire {
 public:
  TileWire(const WireContext& context, std::span<const WireBucket> buckets)
      : CodedWire(context, buckets), owned_(table_of(buckets)) {
    for (const WireBucket& own : buckets) {
      const Bucket& bucket = context.layout.buckets()[own.id];
      require(bucket.owns_blocks(), "TileWire", "takes buckets whose blocks have one owner each");
      for (const Side side : {Side::rowwise, Side::columnwise}) {
        const StoredArray& scales = own.places.front()[scales_of(side)];
        travels(own, own.places.front()[data_of(format(), side)].values, parts_of_data(bucket, format()));
        travels(own, scales.values, parts_of(bucket, scales, scale_densities(context.registry, bucket, side)));
      }
    }
  }

  void measure(Stream&) override {}
  std::span<const Tensor> agreed(ProcessGroup) const override { return {}; }
  void stage(Stream& stream, std::span<const GroupId> groups) override {
    for (GroupId group : context_.layout.groups().ids())
      require(exchanges(group, {}).empty() || std::ranges::find(groups, group) != groups.end(), "TileWire",
              "quantizes all its groups at once");
    quantize(stream, owned_);
  }
  void consume(Stream&, GroupId, const Held&) override {}

 private:
  QuantizeTable table_of(std::span<const WireBucket> buckets) const {
    std::vector<QuantizedMatrix> matrices;
    for (const WireBucket& own : buckets)
      for (QuantizedMatrix& matrix : owned_matrices_of(own, own.places.front())) matrices.push_back(std::move(matrix));
    return placed_table(context_.device, format(), matrices);
  }

  QuantizeTable owned_;  ///< quantizes this rank's rows of all weights
};

}  // namespace

std::unique_ptr<Wire> tile_wire(const WireContext& context, std::span<const WireBucket> buckets) {
  return std::make_unique<TileWire>(context, buckets);
}

}  // namespace tessera
