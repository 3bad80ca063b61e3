#pragma once
#include "kernels/quantize/host_patch.hpp"

/// The columnwise copy of a patch from the rowwise one, on one thread.
namespace tessera::quantizer::host {

/// Loads the scales of the patch's blocks, from the compact array that travelled or from the rowwise array.
template <Format F>
inline void load_scales(const Descriptor& d, const Patch& p, Grid<F, Side::rowwise>& grid) {
  using G = Grid<F, Side::rowwise>;
  const Matrix all = formats::blocks<F>(Side::rowwise, d.matrix);
  const Matrix padded = formats::padded_extent<F>(Side::rowwise, d.matrix);
  constexpr formats::Block repeat = F::scale_layout(Side::rowwise).repeat;
  const std::int64_t i0 = p.row / F::block.rows, j0 = p.column / F::block.columns;
  const auto* blocks = static_cast<const typename F::Scale*>(d.block_scales);
  const auto* array = static_cast<const typename F::Scale*>(d.side[0].scales);
  for (std::int64_t i = 0; i < G::rows && i0 + i < all.rows; ++i)
    for (std::int64_t j = 0; j < G::columns && j0 + j < all.columns; ++j)
      grid.scales[i][j] =
          blocks ? blocks[p.member * all.elements() + (i0 + i) * all.columns + j0 + j]
                 : array[p.member * padded.elements() +
                         scale_place<F>(Side::rowwise, padded, (i0 + i) * repeat.rows, (j0 + j) * repeat.columns)];
}

template <Format F>
inline void build_columnwise(const Descriptor& d, const Patch& p) {
  if constexpr (F::scaled) {
    Grid<F, Side::rowwise> grid{};
    load_scales<F>(d, p, grid);
    Patch whole = p;
    whole.high = d.matrix.elements();
    if (d.block_scales) store_scales<F, Side::rowwise>(d, whole, grid, 0, Grid<F, Side::rowwise>::rows);
    store_scales<F, Side::columnwise>(d, whole, grid, 0, Grid<F, Side::rowwise>::rows);
  }
  if constexpr (F::columnwise == formats::Columnwise::transposed) {
    if (d.side[1].data == nullptr) return;
    Codes codes;
    for (int r = 0; r < p.rows; ++r) {
      const std::int64_t element = p.member * d.stride + (p.row + r) * d.matrix.columns + p.column;
      const auto* from = reinterpret_cast<const std::uint8_t*>(d.side[0].data) + formats::data_bytes<F>(element);
      if constexpr (F::Element::bits == 8)
        copy_codes(from, p.columns, codes.row(r));
      else
        unpack_nibbles(from, p.columns, codes.row(r));
    }
    store_transposed<typename F::Element>(d, p, codes, 0, p.rows);
  }
}

typedef std::uint32_t Quad __attribute__((vector_size(16), may_alias));
typedef std::uint64_t Pair __attribute__((vector_size(16), may_alias));

/// Swizzles tiles of 128 x 4 entries, one or two side by side. The four bytes of a row are a word, and the words of
/// rows that lie 32 apart become neighbours.
template <int tiles>
[[gnu::noinline]] void swizzle_rows(const std::uint8_t* __restrict in, std::int64_t stride,
                                    std::uint8_t* __restrict out) {
  const auto words = [&](int row) {
    std::uint64_t both = 0;
    std::memcpy(&both, in + row * stride, 4 * tiles);
    return reinterpret_cast<Quad>(Pair{both, 0});
  };
#pragma GCC unroll 4
  for (int r = 0; r < 32; ++r) {
    const Quad upper = __builtin_shufflevector(words(r), words(r + 32), 0, 4, 1, 5);
    const Quad lower = __builtin_shufflevector(words(r + 64), words(r + 96), 0, 4, 1, 5);
    const Quad first = __builtin_shufflevector(upper, lower, 0, 1, 4, 5);
    const Quad second = __builtin_shufflevector(upper, lower, 2, 3, 6, 7);
    std::memcpy(out + 16 * r, &first, sizeof first);
    if constexpr (tiles == 2) std::memcpy(out + 512 + 16 * r, &second, sizeof second);
  }
}
/// Swizzles four rows of 128 entries: a transposed tile.
[[gnu::noinline]] inline void swizzle_columns(const std::uint8_t* __restrict in, std::int64_t stride,
                                              std::uint8_t* __restrict out) {
  std::uint32_t words[edge], turned[edge];
  for (int r = 0; r < edge; ++r)
    words[r] = in[r] | in[stride + r] << 8 | in[2 * stride + r] << 16 |
               static_cast<std::uint32_t>(in[3 * stride + r]) << 24;
  for (int r = 0; r < 32; ++r)
    for (int q = 0; q < 4; ++q) turned[4 * r + q] = words[32 * q + r];
  std::memcpy(out, turned, sizeof turned);
}

/// Swizzles entries as a block-scaled GEMM reads them. Rows of its scale matrix run along the long side of blocks; for
/// MXFP8's columnwise copy that matrix is the transposed array.
template <Format F>
inline void swizzle_patch(Side side, const Descriptor& d, const Patch& p) {
  const Addresses& copy = d.side[static_cast<int>(side)];
  if (copy.swizzled == nullptr || copy.scales == nullptr) return;
  const bool columnwise = side == Side::columnwise;
  const bool turned = columnwise != (F::scale_layout(side).order == formats::Order::transposed);
  const ScaleSpan span = scale_span<F>(side, d, p);
  const Matrix padded = formats::padded_extent<F>(side, d.matrix);
  const std::int64_t begin = columnwise ? span.column : span.row, end = columnwise ? span.column_end : span.row_end;
  const std::int64_t left = columnwise ? span.row : span.column, right = columnwise ? span.row_end : span.column_end;
  const auto* in = static_cast<const std::uint8_t*>(copy.scales) + p.member * padded.elements();
  std::uint8_t* out = copy.swizzled + p.member * padded.elements();
  const std::int64_t step = turned ? 4 : 8;  // a patch takes all pairs of tiles that begin in it
  for (std::int64_t row = begin; row < end; row += edge)
    for (std::int64_t column = formats::tiles_along(left, step) * step; column < right; column += step)
      if (turned)
        swizzle_columns(in + column * padded.columns + row, padded.columns,
                        out + formats::swizzled(row, column, padded.rows));
      else
        (padded.columns - column > 4 ? swizzle_rows<2> : swizzle_rows<1>)(
            in + row * padded.columns + column, padded.columns, out + formats::swizzled(row, column, padded.columns));
}

}  // namespace tessera::quantizer::host
