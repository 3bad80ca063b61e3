#pragma once
#include "kernels/quantize/patch.cuh"

/// A patch's scales in shared memory, and from there into the arrays.
namespace tessera::quantizer::device {

using formats::Order;

/// Scales of the blocks of a patch, in the order of the array that they go into, without its repetitions.
template <Format F, Side side>
struct Grid {
  using Scale = typename F::Scale;
  static constexpr formats::Block block = formats::block_of<F>(side);
  static constexpr formats::ScaleLayout layout = F::scale_layout(side);
  static constexpr bool turned = layout.order == Order::transposed;
  static constexpr int rows = patch_edge / block.rows, columns = patch_edge / block.columns;
  /// What the array has of a patch: lines of neighbouring entries.
  static constexpr int lines = turned ? columns * layout.repeat.columns : rows * layout.repeat.rows;
  static constexpr int length = turned ? rows * layout.repeat.rows : columns * layout.repeat.columns;
  static constexpr int line_repeat = turned ? layout.repeat.columns : layout.repeat.rows;
  static constexpr int entry_repeat = turned ? layout.repeat.rows : layout.repeat.columns;
  static constexpr int in_line = length / entry_repeat;

  alignas(8) Scale scale[rows * columns];

  /// Of block (i, j) of the patch.
  __device__ Scale& at(int i, int j) { return scale[turned ? j * rows + i : i * columns + j]; }
  __device__ Scale at(int i, int j) const { return scale[turned ? j * rows + i : i * columns + j]; }
};

/// Rows of a patch that are owned, whole ones.
struct OwnedRows {
  int begin = 0, end = patch_edge;
  OwnedRows() = default;
  __device__ OwnedRows(const Descriptor& d, const Patch& p)
      : begin(static_cast<int>(clamp_to(p.low / d.matrix.columns - p.row, 0, p.rows))),
        end(static_cast<int>(clamp_to(p.high / d.matrix.columns - p.row, 0, p.rows))) {}
};

/// The patch's part of an array, entry by entry, padding included: what belongs to owned rows; below the matrix, what
/// belongs to whoever owns its last row.
template <Format F, Side side>
__device__ void store_ragged_scales(const Descriptor& d, const Patch& p, const Grid<F, side>& grid, OwnedRows owned) {
  using G = Grid<F, side>;
  const Matrix padded = formats::padded_extent<F>(side, d.matrix);
  const Matrix valid = formats::in_order(G::layout.order, formats::scale_extent<F>(side, d.matrix));
  const ScaleSpan span = scale_span<F>(side, d, p);
  auto* out = static_cast<typename F::Scale*>(d.side[static_cast<int>(side)].scales) + p.member * padded.elements();
  const bool last = p.high == d.matrix.elements();
  const int width = static_cast<int>(span.column_end - span.column),
            count = static_cast<int>(span.row_end - span.row) * width;
  for (int q = static_cast<int>(threadIdx.x); q < count; q += threads) {
    const int a = q / width, b = q % width, i = a / G::layout.repeat.rows, j = b / G::layout.repeat.columns;
    const bool below = span.row + a >= valid.rows, beside = span.column + b >= valid.columns;
    const int row = i * G::block.rows;
    if (below ? !last : row < owned.begin || row >= owned.end) continue;
    out[scale_place<F>(side, padded, span.row + a, span.column + b)] =
        below || beside ? typename F::Scale{0} : grid.at(i, j);
  }
}

/// The same for bytes where the patch is whole and the array holds no padding beside it: four entries at a time.
template <Format F, Side side>
__device__ void store_whole_scales(const Descriptor& d, const Patch& p, const Grid<F, side>& grid) {
  using G = Grid<F, side>;
  static_assert(sizeof(typename F::Scale) == 1 && G::length % 4 == 0);
  const Matrix padded = formats::padded_extent<F>(side, d.matrix);
  const std::int64_t line = (G::turned ? p.column : p.row) / patch_edge * G::lines;
  const std::int64_t entry = (G::turned ? p.row : p.column) / patch_edge * G::length;
  auto* out = static_cast<std::uint8_t*>(d.side[static_cast<int>(side)].scales) + p.member * padded.elements() +
              line * padded.columns + entry;
#pragma unroll
  for (int q = static_cast<int>(threadIdx.x); q < G::lines * G::length / 4; q += threads) {
    const int l = q / (G::length / 4), k = q % (G::length / 4) * 4;
    const std::uint8_t* from = grid.scale + l / G::line_repeat * G::in_line + k / G::entry_repeat;
    std::uint32_t word;
    if constexpr (G::entry_repeat == 1)
      memcpy(&word, __builtin_assume_aligned(from, 4), 4);
    else
      word = *from * 0x01010101u;
    *reinterpret_cast<std::uint32_t*>(out + l * padded.columns + k) = word;
  }
}

/// `whole`: every element of the patch is there and owned. All threads call it, once the grid is complete.
template <Format F, Side side>
__device__ void store_scales(const Descriptor& d, const Patch& p, const Grid<F, side>& grid, bool whole) {
  if (d.side[static_cast<int>(side)].scales == nullptr) return;
  if constexpr (sizeof(typename F::Scale) == 1) {
    static_assert(Grid<F, side>::entry_repeat == 1 || Grid<F, side>::entry_repeat % 4 == 0);
    if (whole && aligned(d.side[static_cast<int>(side)].scales, 4)) return store_whole_scales<F, side>(d, p, grid);
  }
  store_ragged_scales<F, side>(d, p, grid, whole ? OwnedRows() : OwnedRows(d, p));
}

/// One scale per block, where scales travel alone: of the blocks that begin in owned rows.
template <Format F>
__device__ void store_block_scales(const Descriptor& d, const Patch& p, const Grid<F, Side::rowwise>& grid) {
  using G = Grid<F, Side::rowwise>;
  const OwnedRows owned(d, p);
  const Matrix all = formats::blocks<F>(Side::rowwise, d.matrix);
  auto* out = static_cast<typename F::Scale*>(d.block_scales) + p.member * all.elements();
  for (int q = static_cast<int>(threadIdx.x); q < G::rows * G::columns; q += threads) {
    const int i = q / G::columns, j = q % G::columns;
    const std::int64_t column = p.column / G::block.columns + j;
    if (i * G::block.rows >= owned.begin && i * G::block.rows < owned.end && column < all.columns)
      out[(p.row / G::block.rows + i) * all.columns + column] = grid.at(i, j);
  }
}

/// Scales of a square format, to both arrays or to where they travel. Its grids agree but for their order.
template <Format F>
__device__ void store_square_scales(const Descriptor& d, const Patch& p, const Grid<F, Side::rowwise>& rowwise,
                                    const Grid<F, Side::columnwise>& columnwise, bool whole) {
  if (d.block_scales != nullptr) return store_block_scales<F>(d, p, rowwise);
  store_scales<F, Side::rowwise>(d, p, rowwise, whole);
  store_scales<F, Side::columnwise>(d, p, columnwise, whole);
}

}  // namespace tessera::quantizer::device
