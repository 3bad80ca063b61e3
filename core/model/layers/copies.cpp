#include "core/model/layers/copies.hpp"

namespace tessera {

void place(Arena& arena, FormatId format, QuantizedMatrix& matrix, std::optional<Side> side) {
  const auto temp = [&](DType type, const Shape& shape) { return arena.temp(type, shape); };
  const FormatTraits traits = traits_of(format);
  const bool shared = traits.columnwise == formats::Columnwise::shared;
  if (side != Side::columnwise || shared)
    matrix.rowwise = place_copy(format, Side::rowwise, matrix.matrix, matrix.members, temp);
  if (side == Side::rowwise) return;
  if (!shared) {
    matrix.columnwise = place_copy(format, Side::columnwise, matrix.matrix, matrix.members, temp);
    return;
  }
  matrix.columnwise.data = matrix.rowwise.data;
  matrix.columnwise.amax = matrix.rowwise.amax;
  const Shape one = traits.scale_shape(Side::columnwise, matrix.matrix);
  if (traits.scaled) matrix.columnwise.scales = arena.temp(traits.scale_type, {matrix.members * one[0], one[1]});
}

Operand operand_of(FormatId format, Side side, const QuantizedMatrix& matrix) {
  const Copy& copy = side == Side::rowwise ? matrix.rowwise : matrix.columnwise;
  const auto one = [&](Tensor all) {
    if (all.shape.rank() > 0) all.shape = {all.rows() / matrix.members, all.columns()};
    return all;
  };
  return {one(copy.data), Codes{format, side, one(copy.scales), copy.amax}, matrix.members, matrix.matrix.elements()};
}

}  // namespace tessera
