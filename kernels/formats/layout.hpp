#pragma once
#include "kernels/base/tensor.hpp"
#include "kernels/formats/format.hpp"

/// Layout of the bytes of a format's copies, derived from the format's constants alone.
namespace tessera::formats {

struct Matrix {
  std::int64_t rows = 0, columns = 0;
  TESSERA_FN constexpr std::int64_t elements() const { return rows * columns; }
  constexpr bool operator==(const Matrix&) const = default;
};

TESSERA_FN constexpr Matrix transposed(Matrix m) { return {m.columns, m.rows}; }
TESSERA_FN constexpr Matrix in_order(Order order, Matrix m) { return order == Order::transposed ? transposed(m) : m; }
TESSERA_FN constexpr std::int64_t tiles_along(std::int64_t n, int tile) { return (n + tile - 1) / tile; }

template <Format F>
TESSERA_FN constexpr Block block_of(Side side) {
  return side == Side::rowwise ? F::block : Block{F::block.columns, F::block.rows};
}
template <Format F>
TESSERA_FN constexpr Order order_of(Side side) {
  return side == Side::rowwise ? Order::as_source : F::columnwise_order;
}

/// Whether a matrix has a copy of this side: its lines are whole bytes, and its blocks are whole or the format is
/// ragged.
template <Format F>
constexpr bool takes(Side side, Matrix m) {
  const Block b = block_of<F>(side);
  if (in_order(order_of<F>(side), m).columns * F::Element::bits % 8 != 0) return false;  // mutation: half_a_byte
  return F::ragged || (m.rows % b.rows == 0 && m.columns % b.columns == 0);
}

/// Blocks along rows and columns.
template <Format F>
TESSERA_FN constexpr Matrix blocks(Side side, Matrix m) {
  const Block b = block_of<F>(side);
  return {tiles_along(m.rows, b.rows), tiles_along(m.columns, b.columns)};
}

/// Bytes of one copy's elements.
template <Format F>
TESSERA_FN constexpr std::int64_t data_bytes(std::int64_t elements) {
  return elements * F::Element::bits / 8;
}

/// The scale array, without and with padding.
template <Format F>
TESSERA_FN constexpr Matrix scale_extent(Side side, Matrix m) {
  const ScaleLayout layout = F::scale_layout(side);
  const Matrix grid = blocks<F>(side, m);
  return in_order(layout.order, {grid.rows * layout.repeat.rows, grid.columns * layout.repeat.columns});
}
template <Format F>
TESSERA_FN constexpr Matrix padded_extent(Side side, Matrix m) {
  const Block pad = F::scale_layout(side).pad;
  const Matrix n = scale_extent<F>(side, m);
  if (!F::scaled) return {};
  return {tiles_along(n.rows, pad.rows) * pad.rows, tiles_along(n.columns, pad.columns) * pad.columns};
}

/// Whether block-scaled GEMMs read this format's scales in the order of swizzled(): one-byte scales in a scale matrix
/// padded to multiples of 128 rows and 4 columns.
template <Format F>
constexpr bool swizzles() {
  return F::scaled && sizeof(typename F::Scale) == 1;
}

/// Swizzle: index of entry (row, column) in the array that a block-scaled GEMM reads: tiles of 128 x 4, interleaved by
/// 32 rows. `columns`: columns of the scale matrix.
TESSERA_FN constexpr std::int64_t swizzled(std::int64_t row, std::int64_t column, std::int64_t columns) {
  return (row / 128 * ((columns + 3) / 4) + column / 4) * 512 + row % 32 * 16 + row % 128 / 32 * 4 + column % 4;
}

/// Shapes of one member's tensors.
template <Format F>
constexpr Shape data_shape(Side side, Matrix m) {
  const Matrix n = in_order(order_of<F>(side), m);
  return F::Element::bits == 4 ? Shape{n.rows, n.columns / 2} : Shape{n.rows, n.columns};
}
template <Format F>
constexpr Shape scale_shape(Side side, Matrix m) {
  const Matrix n = padded_extent<F>(side, m);
  return {n.rows, n.columns};
}

}  // namespace tessera::formats
