#include "core/params/wires/coded.hpp"

#include <algorithm>

#include "kernels/formats/registry.hpp"

namespace tessera {
namespace {

/// One side of `count` members of a bucket from member `i` on; arrays that do not exist are empty.
Copy copy_of(const Planes& planes, FormatId format, Side side, std::size_t i, std::size_t count) {
  const auto of = [&](PlaneKind kind) { return planes[kind] ? planes[kind].of(i, count) : Tensor{}; };
  return {of(data_of(format, side)), of(scales_of(side)), of(PlaneKind::amax), {}};
}

}  // namespace

CodedWire::CodedWire(const WireContext& context, std::span<const WireBucket> buckets)
    : context_(context),
      format_(*context.layout.buckets()[buckets.front().id].key.format.codes),
      exchanges_(context.layout, buckets.front().places.size()),
      operands_(buckets.front().places.size(), IndexedBy<ParamId, std::array<Operand, 2>>(context.registry.size())) {
  for (const WireBucket& own : buckets)
    for (std::size_t place = 0; place < operands_.size(); ++place) add_operands(own, place);
}

void CodedWire::add_operands(const WireBucket& own, std::size_t place) {
  const Bucket& bucket = context_.layout.buckets()[own.id];
  for (const Placement& p : bucket.parameters())
    for (const Side side : {Side::rowwise, Side::columnwise}) {
      const Copy copy = copy_of(own.places[place], format_, side, bucket.index_of(p), 1);
      operands_[place][p.param][static_cast<std::size_t>(side)] =
          coded_operand(format_, context_.registry[p.param], side, context_.layout.member_stride(p.param),
                        copy.data.data, copy.scales.data, copy.amax.data);
    }
}

std::vector<QuantizedMatrix> CodedWire::matrices_of(const WireBucket& own, const Planes& planes,
                                                    const StoredArray& block_scales) const {
  std::vector<QuantizedMatrix> matrices;
  const Bucket& bucket = context_.layout.buckets()[own.id];
  for (const Placement& p : bucket.parameters()) {
    const ParamSpec& spec = context_.registry[p.param];
    const std::size_t i = bucket.index_of(p);
    const auto count = static_cast<std::size_t>(spec.members);
    QuantizedMatrix matrix;
    matrix.name = spec.name;
    matrix.matrix = {spec.member[0], spec.member[1]};
    matrix.members = spec.members;
    matrix.member_stride = context_.layout.member_stride(p.param);
    matrix.values = {nullptr, DType::f32, Shape{0}};
    matrix.rowwise = copy_of(planes, format_, Side::rowwise, i, count);
    matrix.columnwise = copy_of(planes, format_, Side::columnwise, i, count);
    if (block_scales) matrix.block_scales = block_scales.of(i, count);
    matrices.push_back(std::move(matrix));
  }
  return matrices;
}

std::vector<QuantizedMatrix> CodedWire::owned_matrices_of(const WireBucket& own, const Planes& planes,
                                                          const StoredArray& block_scales) const {
  std::vector<QuantizedMatrix> matrices = matrices_of(own, planes, block_scales);
  const Bucket& bucket = context_.layout.buckets()[own.id];
  const std::int64_t slice = bucket.slice_begin(context_.ranks), end = slice + bucket.slice(context_.ranks);
  auto matrix = matrices.begin();
  for (const Placement& p : bucket.parameters()) {
    const std::int64_t elements = positions_of(*matrix), offset = p.offset.value;
    const std::int64_t first = std::clamp<std::int64_t>(slice - offset, 0, elements);
    const std::int64_t last = std::clamp<std::int64_t>(end - offset, 0, elements);
    if (first < last) {
      matrix->begin = ElementIndex(first);
      matrix->values = own.master.flat(offset + first - slice, last - first);
    }
    ++matrix;
  }
  return matrices;
}

void CodedWire::travels(const WireBucket& own, const Tensor& array, Parts parts) {
  travels(own, {0, Sides::none}, {}, array, parts_.emplace_back(std::move(parts)));
}

void CodedWire::travels(const WireBucket& own, const Held& part, const Tensor& kept, const Tensor& array,
                        const Parts& parts) {
  exchanges_.add(own.group, part, {kept, array, parts.counts, parts.begins});
}

std::vector<WireBucket> by_processes(const WireContext& context, std::span<const WireBucket> buckets) {
  std::vector<WireBucket> sorted(buckets.begin(), buckets.end());
  std::ranges::stable_sort(sorted, {},
                           [&](const WireBucket& own) { return context.layout.buckets()[own.id].key.processes; });
  return sorted;
}

std::unique_ptr<Wire> make_wire(const WireContext& context, Travel travel, std::span<const WireBucket> buckets) {
  const std::optional<FormatId>& codes = context.layout.buckets()[buckets.front().id].key.format.codes;
  if (travel == Travel::plain) return plain_wire(context, buckets);
  if (buckets.front().shard_apart()) return kept_wire(context, buckets);
  if (travel == Travel::bf16) return source_wire(context, buckets);
  const bool both = traits_of(*codes).columnwise == formats::Columnwise::requantized;
  return both ? tile_wire(context, buckets) : cast_wire(context, buckets);
}

std::int64_t positions_of(const QuantizedMatrix& matrix) {
  return (matrix.members - 1) * matrix.member_stride + matrix.matrix.elements();
}

}  // namespace tessera
