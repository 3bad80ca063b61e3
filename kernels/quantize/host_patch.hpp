#pragma once
#include <algorithm>
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
template <Format F, formats::Block block>
struct BlockGrid {
  static constexpr int rows = edge / block.rows, columns = edge / block.columns;
  typename F::Scale scales[rows][columns];
  float multipliers[rows][columns];
};
template <Format F, Side side>
using Grid = BlockGrid<F, formats::block_of<F>(side)>;

// ---- rows
// Functions of their own, not inlined, so that the compiler sees each loop alone and turns it into vectors.

template <class Source>
using Stored = typename Source::Stored;

/// top[c] = the larger of itself and |x[c]|.
template <class Source>
[[gnu::noinline]] void largest_by_column(const Stored<Source>* __restrict x, int n, std::uint32_t* __restrict top) {
  for (int c = 0; c < n; ++c) top[c] = larger(top[c], magnitude(Source::value(x[c])));
}

/// by_block[j] = the largest magnitude of x[j * width ...], of as many as there are.
template <class Source, int width>
[[gnu::noinline]] void largest_by_block(const Stored<Source>* __restrict x, int n, std::uint32_t* __restrict by_block) {
  for (int j = 0; j * width < n; ++j) {
    std::uint32_t top = 0;
    if ((j + 1) * width <= n)
      for (int c = 0; c < width; ++c) top = larger(top, magnitude(Source::value(x[j * width + c])));
    else
      for (int c = j * width; c < n; ++c) top = larger(top, magnitude(Source::value(x[c])));
    by_block[j] = top;
  }
}

/// Largest of every `width` columns.
template <int width>
[[gnu::noinline]] void fold(const std::uint32_t* __restrict by_column, std::uint32_t* __restrict by_block) {
  for (int j = 0; j < edge / width; ++j) {
    std::uint32_t top = 0;
    for (int c = 0; c < width; ++c) top = larger(top, by_column[j * width + c]);
    by_block[j] = top;
  }
}

/// Rows with a subnormal code are rare where codes have a wide range; they are encoded again, in full.
template <class Element, class Source>
[[gnu::noinline]] void encode_row(const Stored<Source>* __restrict x, const float* __restrict multipliers, int n,
                                  std::uint8_t* __restrict codes) {
  if constexpr (Element::bits == 8 && requires { Element::least_normal; }) {
    std::uint32_t small = 0;
    for (int c = 0; c < n; ++c) {
      const float v = Source::value(x[c]) * multipliers[c];
      small |= (std::bit_cast<std::uint32_t>(v) & 0x7FFFFFFFu) < Element::least_normal ? 1u : 0u;
      codes[c] = static_cast<std::uint8_t>(Element::encode_normal(v));
    }
    if (small == 0) return;
  }
  for (int c = 0; c < n; ++c)
    codes[c] = static_cast<std::uint8_t>(Element::encode(Source::value(x[c]) * multipliers[c]));
}
template <class Source>
[[gnu::noinline]] void encode_row_at_random(const Stored<Source>* __restrict x, const float* __restrict multipliers,
                                            const std::uint8_t* __restrict draws, int n,
                                            std::uint8_t* __restrict codes) {
  for (int c = 0; c < n; ++c)
    codes[c] = static_cast<std::uint8_t>(formats::e2m1_stochastic(Source::value(x[c]) * multipliers[c], draws[c]));
}

/// The bytes of n <= 128 indices from `first` on, their blocks side by side.
[[gnu::noinline]] inline void draw_row(RandomKey key, std::uint64_t first, int n, std::uint8_t* __restrict out) {
  constexpr int lanes = 16;  // nine blocks at most
  std::uint32_t words[4][lanes];
  for (int l = 0; l < lanes; ++l) {
    const PhiloxBlock block = draw_block(key, first / 16 + static_cast<std::uint64_t>(l));
    for (int w = 0; w < 4; ++w) words[w][l] = block.word[w];
  }
  std::uint32_t bytes[lanes][4];
  for (int l = 0; l < lanes; ++l)
    for (int w = 0; w < 4; ++w) bytes[l][w] = words[w][l];
  std::memcpy(out, reinterpret_cast<const std::uint8_t*>(bytes) + first % 16, static_cast<std::size_t>(n));
}

/// Two codes a byte, the even one low, as pairs of bytes in one word (the host is little-endian). n is even.
[[gnu::noinline]] inline void pack_nibbles(const std::uint8_t* __restrict codes, int n, std::uint8_t* __restrict out) {
  for (int i = 0; i < n / 2; ++i) {
    std::uint16_t pair;
    std::memcpy(&pair, codes + 2 * i, sizeof pair);
    out[i] = static_cast<std::uint8_t>(pair | pair >> 4);
  }
}
[[gnu::noinline]] inline void unpack_nibbles(const std::uint8_t* __restrict packed, int n,
                                             std::uint8_t* __restrict codes) {
  for (int i = 0; i < n / 2; ++i) {
    const auto pair = static_cast<std::uint16_t>((packed[i] & 15) | (packed[i] >> 4) << 8);
    std::memcpy(codes + 2 * i, &pair, sizeof pair);
  }
}

/// A row of n codes as stored; n is even where two share a byte.
template <class Element>
inline void store_row(const std::uint8_t* codes, int n, std::byte* out) {
  if constexpr (Element::bits == 8)
    std::memcpy(out, codes, static_cast<std::size_t>(n));
  else
    pack_nibbles(codes, n, reinterpret_cast<std::uint8_t*>(out));
}

/// Largest of a member's owned patches, from `of_patches`, one a unit; 0 where none is owned.
inline float largest_of_member(const Descriptor& d, std::int64_t member, const float* of_patches) {
  const UnitRange range = owned_patches(d, member);
  float most = 0;
  for (std::int64_t i = range.begin; i < range.end; ++i) most = std::max(most, of_patches[i]);
  return most;
}

// ---- transposition

/// Swaps the parts of words `distance` rows apart that stand on the wrong side of the diagonal.
template <int distance, std::uint64_t mask>
inline void swap_across(std::uint64_t (&w)[8][edge / 8]) {
  for (int i = 0; i < 8; ++i) {
    if (i & distance) continue;
    for (int j = 0; j < edge / 8; ++j) {
      const std::uint64_t t = (w[i][j] >> (8 * distance) ^ w[i + distance][j]) & mask;
      w[i + distance][j] ^= t;
      w[i][j] ^= t << (8 * distance);
    }
  }
}

[[gnu::noinline]] inline void transpose(const Codes& __restrict from, Codes& __restrict to) {
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
template <class Element>
inline void store_transposed(const Descriptor& d, const Patch& p, const Codes& codes, int begin, int end) {
  if (begin >= end) return;
  Codes turned;
  transpose(codes, turned);
  std::byte* out =
      d.side[1].data + (p.member * d.stride + p.column * d.matrix.rows + p.row + begin) * Element::bits / 8;
  for (int c = 0; c < p.columns; ++c)
    store_row<Element>(turned.row(c) + begin, end - begin, out + c * d.matrix.rows * Element::bits / 8);
}

// ---- scales

template <Format F, int n>
[[gnu::noinline]] void encode_scales(const std::uint32_t* __restrict amax, TensorScale tensor,
                                     typename F::Scale* __restrict scales, float* __restrict multipliers) {
  for (int i = 0; i < n; ++i) {
    const auto encoding = F::encoding(largest_of(amax[i]), tensor);
    scales[i] = encoding.scale;
    multipliers[i] = encoding.multiplier;
  }
}

/// The multiplier of every column of a row of blocks.
template <int width>
inline void spread(const float* by_block, float* by_column) {
  for (int j = 0; j < edge / width; ++j)
    for (int c = 0; c < width; ++c) by_column[j * width + c] = by_block[j];
}

/// The patch's part of a scale array, from block rows [begin, end) of its grid; padding below belongs to whoever owns
/// the matrix's last row.
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
template <Format F>
inline void store_block_scales(const Descriptor& d, const Patch& p, const Grid<F, Side::rowwise>& grid, int begin,
                               int end) {
  const Matrix all = formats::blocks<F>(Side::rowwise, d.matrix);
  const std::int64_t i0 = p.row / F::block.rows, j0 = p.column / F::block.columns;
  auto* out = static_cast<typename F::Scale*>(d.block_scales) + p.member * all.elements();
  for (std::int64_t i = begin; i < end; ++i)
    for (std::int64_t j = 0; j < Grid<F, Side::rowwise>::columns && j0 + j < all.columns; ++j)
      out[(i0 + i) * all.columns + j0 + j] = grid.scales[i][j];
}

/// Scales of a square format: to the arrays, or where they travel.
template <Format F>
inline void store_square_scales(const Descriptor& d, const Patch& p, const Grid<F, Side::rowwise>& grid, int begin,
                                int end) {
  if (d.block_scales != nullptr) return store_block_scales<F>(d, p, grid, begin, end);
  store_scales<F, Side::rowwise>(d, p, grid, begin, end);
  store_scales<F, Side::columnwise>(d, p, grid, begin, end);
}

}  // namespace tessera::quantizer::host
