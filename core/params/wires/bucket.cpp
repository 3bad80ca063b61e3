#include "core/params/wires/bucket.hpp"

#include <algorithm>

namespace tessera {
namespace {

/// One side of `count` members of a bucket from member `i` on; arrays that do not exist are empty.
Copy copy_of(const Planes& planes, FormatId format, Side side, std::size_t i, std::size_t count) {
  const auto of = [&](PlaneKind kind) { return planes[kind] ? planes[kind].of(i, count) : Tensor{}; };
  return {of(data_of(format, side)), of(scales_of(side)), of(PlaneKind::amax), {}};
}

/// Elements of a parameter, gaps between its members included.
std::int64_t positions_of(const QuantizedMatrix& matrix) {
  return (matrix.members - 1) * matrix.member_stride + matrix.matrix.elements();
}

}  // namespace

Operand operand_in(const WireContext& context, const Bucket& bucket, const Placement& p, Travel travel,
                   const Planes& planes, Side side) {
  const ParamSpec& spec = context.registry[p.param];
  const std::int64_t stride = context.layout.member_stride(p.param);
  if (travel == Travel::plain)
    return {planes[PlaneKind::rowwise].of(bucket.index_of(p), 1).view(spec.member), spec.members, stride};
  const FormatId format = *bucket.key.format.codes;
  const Copy copy = copy_of(planes, format, side, bucket.index_of(p), 1);
  return coded_operand(format, spec, side, stride, copy.data.data, copy.scales.data, copy.amax.data);
}

std::vector<QuantizedMatrix> matrices_of(const WireContext& context, const WireBucket& own, const Planes& planes,
                                         const StoredArray& block_scales) {
  std::vector<QuantizedMatrix> matrices;
  const Bucket& bucket = context.bucket(own);
  const FormatId format = *bucket.key.format.codes;
  for (const Placement& p : bucket.parameters()) {
    const ParamSpec& spec = context.registry[p.param];
    const std::size_t i = bucket.index_of(p);
    const auto count = static_cast<std::size_t>(spec.members);
    QuantizedMatrix matrix;
    matrix.name = spec.name;
    matrix.matrix = {spec.member[0], spec.member[1]};
    matrix.members = spec.members;
    matrix.member_stride = context.layout.member_stride(p.param);
    matrix.values = {nullptr, DType::f32, Shape{0}};
    matrix.rowwise = copy_of(planes, format, Side::rowwise, i, count);
    matrix.columnwise = copy_of(planes, format, Side::columnwise, i, count);
    if (block_scales) matrix.block_scales = block_scales.of(i, count);
    matrices.push_back(std::move(matrix));
  }
  return matrices;
}

std::vector<QuantizedMatrix> owned_matrices_of(const WireContext& context, const WireBucket& own, const Planes& planes,
                                               const StoredArray& block_scales) {
  std::vector<QuantizedMatrix> matrices = matrices_of(context, own, planes, block_scales);
  const Bucket& bucket = context.bucket(own);
  const std::int64_t slice = bucket.slice_begin(context.ranks), end = slice + bucket.slice(context.ranks);
  auto matrix = matrices.begin();
  for (const Placement& p : bucket.parameters()) {
    const std::int64_t elements = positions_of(*matrix), offset = p.offset.value;
    const std::int64_t first = std::clamp<std::int64_t>(slice - offset, 0, elements);
    const std::int64_t last = std::clamp<std::int64_t>(end - offset, 0, elements);
    if (first < last) {  // mutation: owned_codes_are_never_cast
      matrix->begin = ElementIndex(first);
      matrix->values = own.master.flat(offset + first - slice, last - first);
    }
    ++matrix;
  }
  return matrices;
}

std::vector<QuantizedMatrix> staged_matrices_of(const WireContext& context, const WireBucket& own) {
  std::vector<QuantizedMatrix> matrices = matrices_of(context, own, own.places.front());
  auto matrix = matrices.begin();
  for (const Placement& p : context.bucket(own).parameters()) {
    matrix->values = own.staged.flat(p.offset.value, positions_of(*matrix));
    ++matrix;
  }
  return matrices;
}

}  // namespace tessera
