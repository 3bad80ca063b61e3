#include "core/params/planes.hpp"

#include "kernels/convert/convert.hpp"
#include "kernels/formats/registry.hpp"

namespace tessera {
namespace {

formats::Matrix matrix_of(const ParamSpec& spec) {
  require(spec.member.rank() == 2, "Planes", "only matrices have codes");
  return {spec.member[0], spec.member[1]};
}

/// Makes an array whose members lie at the bucket's offsets, converted to entries by `entries(elements)`.
template <class F>
StoredArray at_offsets(const ArrayMemory& places, PlaneKind kind, DType type, const Bucket& bucket, const F& entries) {
  StoredArray array{places(kind, type, {entries(bucket.size)}), {}};
  for (const Placement& p : bucket.members) array.members.push_back({entries(p.offset), entries(p.size)});
  return array;
}

/// Makes an array that packs `entries(spec)` entries of each member.
template <class Memory, class F>
StoredArray packed(const Memory& memory, const ParamRegistry& registry, const Bucket& bucket, const F& entries) {
  StoredArray array;
  std::int64_t end = 0;
  for (const Placement& p : bucket.members) {
    array.members.push_back({end, entries(registry[p.param])});
    end = array.members.back().end();
  }
  array.values = memory(Shape{end});
  return array;
}

bool travel_apart(const WeightFormat& format, Travel travel) {
  return travel == Travel::codes && copies_travel_apart(*format.codes);
}

}  // namespace

double wire_bytes(const WeightFormat& format, Travel travel) {
  if (travel != Travel::codes) return static_cast<double>(size_of(format.plain));
  if (travel_apart(format, travel)) return 2 * copy_bytes(*format.codes);
  return traits_of(*format.codes).bits / 8.0;
}

double kept_bytes(const WeightFormat& format, Travel travel) {
  return travel == Travel::plain ? static_cast<double>(size_of(format.plain)) : copy_bytes(*format.codes);
}

Sides payload_of(const WeightFormat& format, Travel travel, Side side) {
  if (travel == Travel::plain) return Sides::none;
  return side == Side::columnwise && travel_apart(format, travel) ? Sides::columnwise : Sides::rowwise;
}

std::string held_as(const WeightFormat& format, Travel travel) {
  return std::string(travel == Travel::plain ? name_of(WeightFormat{format.plain, {}}) : name_of(format));
}
std::string travels_as(const WeightFormat& format, Travel travel) {
  return std::string(travel == Travel::codes ? "quantized" : name_of(WeightFormat{format.plain, {}}));
}
std::string reason_of(const WeightFormat& format, Travel travel) {
  if (travel == Travel::plain) return "Q of the masters that the ranks hold in parts";
  if (travel == Travel::bf16) return "every rank quantizes both copies from it";
  const formats::Columnwise columnwise = traits_of(*format.codes).columnwise;
  switch (columnwise) {
    case formats::Columnwise::requantized: return "codes and scales of both copies, neither of which gives the other";
    case formats::Columnwise::transposed: return "rowwise codes, which give the columnwise ones";
    case formats::Columnwise::shared: return "codes, which serve both directions";
  }
  return "";
}

Planes::Planes(const ParamRegistry& registry, const Bucket& bucket, Travel travel, const ArrayMemory& places) {
  const auto array = [this](PlaneKind kind) -> StoredArray& { return arrays_[static_cast<std::size_t>(kind)]; };
  if (travel == Travel::plain) {
    array(PlaneKind::rowwise) = at_offsets(places, PlaneKind::rowwise, bucket.key.format.plain, bucket,
                                           [](ElementIndex elements) { return elements.value; });
    return;
  }
  const FormatTraits format = traits_of(*bucket.key.format.codes);
  const auto data = [&](PlaneKind kind) {
    array(kind) = at_offsets(places, kind, DType::u8, bucket,
                             [&](ElementIndex elements) { return format.data_bytes(elements.value); });
  };
  const auto of_members = [&](PlaneKind kind, DType type, const auto& entries) {
    array(kind) = packed([&](const Shape& shape) { return places(kind, type, shape); }, registry, bucket, entries);
  };
  data(PlaneKind::rowwise);
  if (format.columnwise != formats::Columnwise::shared) data(PlaneKind::columnwise);
  for (const Side side : {Side::rowwise, Side::columnwise})
    if (format.scaled)
      of_members(scales_of(side), format.scale_type, [&](const ParamSpec& spec) {
        return format.padded_extent(side, matrix_of(spec)).elements();
      });
  if (format.scaled && format.columnwise != formats::Columnwise::requantized)
    of_members(PlaneKind::block_scales, format.scale_type, [&](const ParamSpec& spec) {
      return format.blocks(Side::rowwise, matrix_of(spec)).elements();
    });
  if (format.tensor_amax) of_members(PlaneKind::amax, DType::f32, [](const ParamSpec&) { return std::int64_t{1}; });
}

Planes Planes::allocated(Device& device, const ParamRegistry& registry, const Bucket& bucket, Travel travel) {
  const auto allocate = [&](PlaneKind kind, DType type, const Shape& shape) {
    return kind == PlaneKind::block_scales ? Tensor{} : device.allocate(Category::weights, type, shape);
  };
  Planes planes(registry, bucket, travel, allocate);
  if (travel != Travel::plain)
    planes.visit([&](PlaneKind, const StoredArray& stored) { clear(device.compute(), stored.values); });
  return planes;
}

StoredArray block_scales_of(Device& device, const ParamRegistry& registry, const Bucket& bucket) {
  const FormatTraits format = traits_of(*bucket.key.format.codes);
  if (!format.scaled) return StoredArray();
  return packed([&](const Shape& shape) { return device.allocate(Category::staging, format.scale_type, shape); },
                registry, bucket,
                [&](const ParamSpec& spec) { return format.blocks(Side::rowwise, matrix_of(spec)).elements(); });
}

bool holds(const WeightFormat& format, Travel travel, Sides sides, PlaneKind kind) {
  if (travel == Travel::plain) return true;
  if (!travel_apart(format, travel)) return sides != Sides::none;
  const bool columns = kind == PlaneKind::columnwise || kind == PlaneKind::columnwise_scales;
  return contains(sides, columns ? Sides::columnwise : Sides::rowwise);
}

PlaneKind data_of(FormatId format, Side side) {
  const bool own = traits_of(format).columnwise != formats::Columnwise::shared;
  return side == Side::columnwise && own ? PlaneKind::columnwise : PlaneKind::rowwise;
}

Operand coded_operand(FormatId format, const ParamSpec& spec, Side side, std::int64_t stride, void* data, void* scales,
                      void* amax) {
  const FormatTraits traits = traits_of(format);
  const formats::Matrix matrix = matrix_of(spec);
  Codes codes{format, side, {}, {}};
  if (traits.scaled) codes.scales = {scales, traits.scale_type, traits.scale_shape(side, matrix)};
  if (traits.tensor_amax) codes.amax = {amax, DType::f32, {spec.members}};
  return Operand({data, traits.data_type, traits.data_shape(side, matrix)}, codes, spec.members, stride);
}

}  // namespace tessera
