#pragma once
#include <optional>

#include "kernels/base/arena.hpp"
#include "kernels/gemm/operand.hpp"
#include "kernels/quantize/quantize.hpp"

/// Memory of quantized copies that a product reads.
namespace tessera {

/// A place for one copy of `members` matrices; allocate(type, shape) is an arena's keep() or temp().
template <class Allocate>
Copy place_copy(FormatId format, Side side, formats::Matrix m, std::int64_t members, const Allocate& allocate) {
  const FormatTraits traits = traits_of(format);
  const auto all = [&](const Shape& one) { return Shape{members * one[0], one[1]}; };
  Copy copy;
  copy.data = allocate(traits.data_type, all(traits.data_shape(side, m)));
  if (traits.scaled) copy.scales = allocate(traits.scale_type, all(traits.scale_shape(side, m)));
  if (traits.tensor_amax) copy.amax = allocate(DType::f32, {members * traits.amaxes(side, m)});
  return copy;
}

/// Places in arena.temp() for one copy of `matrix`, or (no side) both. Copies that share their data are made together.
void place(Arena& arena, FormatId format, QuantizedMatrix& matrix, std::optional<Side> side);

/// What products read of a copy.
Operand operand_of(FormatId format, Side side, const QuantizedMatrix& matrix);

}  // namespace tessera
