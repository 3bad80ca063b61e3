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
  return visit_format(format, [&]<class F>() {
    const auto all = [&](const Shape& one) { return Shape{members * one[0], one[1]}; };
    Copy copy;
    copy.data = allocate(dtype_of<typename F::Element::Storage>, all(formats::data_shape<F>(side, m)));
    if (F::scaled) copy.scales = allocate(dtype_of<typename F::Scale>, all(formats::scale_shape<F>(side, m)));
    if (F::tensor_amax) copy.amax = allocate(DType::f32, {members});
    return copy;
  });
}

/// Places in arena.temp() for one copy of `matrix`, or (no side) both. Copies that share their data are made together.
void place(Arena& arena, FormatId format, QuantizedMatrix& matrix, std::optional<Side> side);

/// What products read of a copy.
Operand operand_of(FormatId format, Side side, const QuantizedMatrix& matrix);

}  // namespace tessera
