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

/// What the layout of a format's bytes follows from.
struct Geometry {
  int bits;     ///< per element
  Block block;  ///< of the rowwise copy
  bool scaled, ragged;
  Columnwise columnwise;
  Order columnwise_order;
  int scale_bytes;
  ScaleLayout rowwise_scales, columnwise_scales;

  TESSERA_FN constexpr Block block_of(Side side) const {
    return side == Side::rowwise ? block : Block{block.columns, block.rows};
  }
  TESSERA_FN constexpr Order order_of(Side side) const {
    return side == Side::rowwise ? Order::as_source : columnwise_order;
  }
  TESSERA_FN constexpr ScaleLayout scale_layout(Side side) const {
    return side == Side::rowwise ? rowwise_scales : columnwise_scales;
  }
  /// Whether a matrix has a copy of this side: its lines are whole bytes, and its blocks are whole or the format is
  /// ragged.
  constexpr bool takes(Side side, Matrix m) const {
    const Block b = block_of(side);
    if (in_order(order_of(side), m).columns * bits % 8 != 0) return false;  // mutation: half_a_byte
    return ragged || (m.rows % b.rows == 0 && m.columns % b.columns == 0);
  }
  /// Blocks along rows and columns.
  TESSERA_FN constexpr Matrix blocks(Side side, Matrix m) const {
    const Block b = block_of(side);
    return {tiles_along(m.rows, b.rows), tiles_along(m.columns, b.columns)};
  }
  /// Bytes of one copy's elements.
  TESSERA_FN constexpr std::int64_t data_bytes(std::int64_t elements) const { return elements * bits / 8; }
  /// The scale array, without and with padding.
  TESSERA_FN constexpr Matrix scale_extent(Side side, Matrix m) const {
    const ScaleLayout layout = scale_layout(side);
    const Matrix grid = blocks(side, m);
    return in_order(layout.order, {grid.rows * layout.repeat.rows, grid.columns * layout.repeat.columns});
  }
  TESSERA_FN constexpr Matrix padded_extent(Side side, Matrix m) const {
    const Block pad = scale_layout(side).pad;
    const Matrix n = scale_extent(side, m);
    if (!scaled) return {};
    return {tiles_along(n.rows, pad.rows) * pad.rows, tiles_along(n.columns, pad.columns) * pad.columns};
  }
  /// Shapes of one member's tensors.
  constexpr Shape data_shape(Side side, Matrix m) const {
    const Matrix n = in_order(order_of(side), m);
    return bits == 4 ? Shape{n.rows, n.columns / 2} : Shape{n.rows, n.columns};
  }
  constexpr Shape scale_shape(Side side, Matrix m) const {
    const Matrix n = padded_extent(side, m);
    return {n.rows, n.columns};
  }
};

template <Format F>
TESSERA_FN constexpr Geometry geometry_of() {
  return {F::Element::bits,
          F::block,
          F::scaled,
          F::ragged,
          F::columnwise,
          F::columnwise_order,
          static_cast<int>(sizeof(typename F::Scale)),
          F::scale_layout(Side::rowwise),
          F::scale_layout(Side::columnwise)};
}

/// The same of a format that is known when the program is compiled.
template <Format F>
TESSERA_FN constexpr Block block_of(Side side) {
  return geometry_of<F>().block_of(side);
}
template <Format F>
TESSERA_FN constexpr Order order_of(Side side) {
  return geometry_of<F>().order_of(side);
}
template <Format F>
constexpr bool takes(Side side, Matrix m) {
  return geometry_of<F>().takes(side, m);
}
template <Format F>
TESSERA_FN constexpr Matrix blocks(Side side, Matrix m) {
  return geometry_of<F>().blocks(side, m);
}
template <Format F>
TESSERA_FN constexpr std::int64_t data_bytes(std::int64_t elements) {
  return geometry_of<F>().data_bytes(elements);
}
template <Format F>
TESSERA_FN constexpr Matrix scale_extent(Side side, Matrix m) {
  return geometry_of<F>().scale_extent(side, m);
}
template <Format F>
TESSERA_FN constexpr Matrix padded_extent(Side side, Matrix m) {
  return geometry_of<F>().padded_extent(side, m);
}
template <Format F>
constexpr Shape data_shape(Side side, Matrix m) {
  return geometry_of<F>().data_shape(side, m);
}
template <Format F>
constexpr Shape scale_shape(Side side, Matrix m) {
  return geometry_of<F>().scale_shape(side, m);
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

}  // namespace tessera::formats
