#pragma once
#include <cstring>

#include "kernels/quantize/draws.hpp"

/// A patch's work on one thread, in loops over its columns that the compiler turns into vectors.
namespace tessera::quantizer::host {

using formats::Format;
using formats::TensorScale;

inline constexpr int edge = patch_edge;

/// A patch of codes, a byte each. Written as bytes, read as wider words too.
struct Codes {
  alignas(64) std::uint64_t words[edge][edge / 8];
  std::uint8_t* row(int r) { return reinterpret_cast<std::uint8_t*>(words[r]); }
};

/// What the blocks of a patch get.
template <Format F, formats::Block block> struct BlockGrid {
  static constexpr int rows = edge / block.rows, columns = edge / block.columns;
  typename F::Scale scales[rows][columns];
  float multipliers[rows][columns];
};
template <Format F, Side side> using Grid = BlockGrid<F, formats::block_of<F>(side)>;

// ---- rows

template <class Row> inline void largest_by_column(const Row& x, int n, std::uint32_t* top) {
  for (int c = 0; c < n; ++c) {
    const std::uint32_t m = magnitude(x(c));
    top[c] = m > top[c] ? m : top[c];
  }
}
template <class Row> inline std::uint32_t largest_in(const Row& x, int begin, int end) {
  std::uint32_t top = 0;
  for (int c = begin; c < end; ++c) {
    const std::uint32_t m = magnitude(x(c));
    top = m > top ? m : top;
  }
  return top;
}

template <class Element, class Row, class Code> inline void encode_row(const Row& x, const float* multipliers, int n, Code* codes) {
#pragma GCC ivdep
  for (int c = 0; c < n; ++c) codes[c] = static_cast<Code>(Element::encode(x(c) * multipliers[c]));
}
template <class Row>
inline void encode_row_at_random(const Row& x, const float* multipliers, const std::uint8_t* draws, int n, std::uint8_t* codes) {
#pragma GCC ivdep
  for (int c = 0; c < n; ++c) codes[c] = static_cast<std::uint8_t>(formats::e2m1_stochastic(x(c) * multipliers[c], draws[c]));
}

/// Two codes a byte, the even one low. n is even; `codes` begins at a multiple of two bytes.
inline void pack_nibbles(const std::uint8_t* codes, int n, std::uint8_t* out) {
  for (int i = 0; i < n / 2; ++i) out[i] = static_cast<std::uint8_t>(codes[2 * i] | codes[2 * i + 1] << 4);
}
inline void unpack_nibbles(const std::uint8_t* packed, int n, std::uint8_t* codes) {
  for (int i = 0; i < n / 2; ++i) {
    codes[2 * i] = packed[i] & 15;
    codes[2 * i + 1] = packed[i] >> 4;
  }
}

/// A row of n codes as stored; n is even where two share a byte.
template <class Element> inline void store_row(const std::uint8_t* codes, int n, std::byte* out) {
  if constexpr (Element::bits == 8) std::memcpy(out, codes, static_cast<std::size_t>(n));
  else pack_nibbles(codes, n, reinterpret_cast<std::uint8_t*>(out));
}

// ---- transposition

/// Swaps the parts of words `distance` rows apart that stand on the wrong side of the diagonal.
template <int distance, std::uint64_t mask> inline void swap_across(std::uint64_t (&w)[8][edge / 8]) {
  for (int i = 0; i < 8; ++i) {
    if (i & distance) continue;
    for (int j = 0; j < edge / 8; ++j) {
      const std::uint64_t t = (w[i][j] >> (8 * distance) ^ w[i + distance][j]) & mask;
      w[i + distance][j] ^= t;
      w[i][j] ^= t << (8 * distance);
    }
  }
}

inline void transpose(const Codes& from, Codes& to) {
  for (int strip = 0; strip < edge / 8; ++strip) {
    std::uint64_t w[8][edge / 8];
    std::memcpy(w, from.words[strip * 8], sizeof w);
    swap_across<4, 0x00000000FFFFFFFFu>(w);
    swap_across<2, 0x0000FFFF0000FFFFu>(w);
    swap_across<1, 0x00FF00FF00FF00FFu>(w);
    for (int j = 0; j < edge / 8; ++j)
      for (int i = 0; i < 8; ++i) to.words[8 * j + i][strip] = w[i][j];
  }
}

/// Rows [begin, end) of the patch's codes to the columnwise copy, transposed.
template <class Element> inline void store_transposed(const Descriptor& d, const Patch& p, const Codes& codes, int begin, int end) {
  if (begin >= end) return;
  Codes turned;
  transpose(codes, turned);
  std::byte* out = d.side[1].data + (p.member * d.stride + p.column * d.matrix.rows + p.row + begin) * Element::bits / 8;
  for (int c = 0; c < p.columns; ++c)
    store_row<Element>(turned.row(c) + begin, end - begin, out + c * d.matrix.rows * Element::bits / 8);
}

// ---- scales

template <Format F, int n>
inline void encode_scales(const std::uint32_t* amax, const TensorScale& tensor, typename F::Scale* scales, float* multipliers) {
  for (int i = 0; i < n; ++i) {
    const auto encoding = F::encoding(largest_of(amax[i]), tensor);
    scales[i] = encoding.scale;
    multipliers[i] = encoding.multiplier;
  }
}

/// The multiplier of every column of a row of blocks.
template <int width> inline void spread(const float* by_block, float* by_column) {
  for (int j = 0; j < edge / width; ++j)
    for (int c = 0; c < width; ++c) by_column[j * width + c] = by_block[j];
}

/// The patch's part of a scale array, from block rows [begin, end) of its grid; padding below belongs to whoever owns the
/// matrix's last row.
template <Format F, Side side>
inline void store_scales(const Descriptor& d, const Patch& p, const Grid<F, side>& grid, int begin, int end) {
  if (d.side[static_cast<int>(side)].scales == nullptr) return;
  constexpr formats::ScaleLayout layout = F::scale_layout(side);
  const ScaleSpan span = scale_span<F>(side, d, p);
  const Matrix padded = formats::padded_extent<F>(side, d.matrix);
  const Matrix valid = formats::in_order(layout.order, formats::scale_extent<F>(side, d.matrix));
  auto* out = static_cast<typename F::Scale*>(d.side[static_cast<int>(side)].scales) + p.member * padded.elements();
  const bool last = p.high == d.matrix.elements();
  for (std::int64_t a = span.row; a < span.row_end; ++a) {
    const int i = static_cast<int>(a - span.row) / layout.repeat.rows;
    const bool padding = a >= valid.rows;
    if (padding ? !last : i < begin || i >= end) continue;
    for (std::int64_t b = span.column; b < span.column_end; ++b) {
      const int j = static_cast<int>(b - span.column) / layout.repeat.columns;
      const bool held = !padding && b < valid.columns;
      out[scale_place<F>(side, padded, a, b)] = held ? grid.scales[i][j] : typename F::Scale{0};
    }
  }
}

/// One scale per block, where scales travel alone.
template <Format F> inline void store_block_scales(const Descriptor& d, const Patch& p, const Grid<F, Side::rowwise>& grid, int begin, int end) {
  const Matrix all = formats::blocks<F>(Side::rowwise, d.matrix);
  const std::int64_t i0 = p.row / F::block.rows, j0 = p.column / F::block.columns;
  auto* out = static_cast<typename F::Scale*>(d.block_scales) + p.member * all.elements();
  for (std::int64_t i = begin; i < end; ++i)
    for (std::int64_t j = 0; j < Grid<F, Side::rowwise>::columns && j0 + j < all.columns; ++j)
      out[(i0 + i) * all.columns + j0 + j] = grid.scales[i][j];
}

/// Scales of a square format: to the arrays, or where they travel.
template <Format F> inline void store_square_scales(const Descriptor& d, const Patch& p, const Grid<F, Side::rowwise>& grid, int begin, int end) {
  if (d.block_scales != nullptr) return store_block_scales<F>(d, p, grid, begin, end);
  store_scales<F, Side::rowwise>(d, p, grid, begin, end);
  store_scales<F, Side::columnwise>(d, p, grid, begin, end);
}

}  // namespace tessera::quantizer::host
