#pragma once
#include <algorithm>
#include <cstring>

#include "kernels/quantize/draws.hpp"

/// Work on one patch by one host thread, in loops over columns that the compiler vectorises.
namespace tessera::quantizer::host {

using formats::Format;
using formats::TensorScale;

inline constexpr int edge = patch_edge;

/// A patch of codes, a byte each.
struct Codes {
  alignas(64) std::uint8_t code[edge][edge];
  std::uint8_t* row(int r) { return code[r]; }
  const std::uint8_t* row(int r) const { return code[r]; }
};

/// Scales and multipliers of the blocks of a patch.
template <Format F, formats::Block block>
struct BlockGrid {
  static constexpr int rows = edge / block.rows, columns = edge / block.columns;
  typename F::Scale scales[rows][columns];
  float multipliers[rows][columns];
};
template <Format F, Side side>
using Grid = BlockGrid<F, formats::block_of<F>(side)>;

// ---- memory
// Software prefetch: rows of a patch lie too far apart for the hardware's prefetcher.

/// Prefetches `bytes` from `x` on, to be read or (`write`) written. Never faults, wherever it points.
template <std::int64_t bytes, int write>
inline void fetch(const void* x) {
  for (std::int64_t byte = 0; byte < bytes; byte += 64)
    __builtin_prefetch(static_cast<const char*>(x) + byte, write, 2);
}
/// Prefetches the next patch's part of a row.
template <class T>
inline void fetch_ahead(const T* x) {
  fetch<edge * sizeof(T), 0>(x);
}
/// Prefetches, for writing, where row `r` and column `r` of the patch's codes will be stored.
template <Format F>
inline void fetch_to_write(const Descriptor& d, const Patch& p, int r) {
  constexpr bool turned = F::columnwise_order == formats::Order::transposed;
  const std::int64_t row = p.member * d.stride + (p.row + r) * d.matrix.columns + p.column;
  const std::int64_t column = turned ? p.member * d.stride + (p.column + r) * d.matrix.rows + p.row : row;
  fetch<formats::data_bytes<F>(edge), 1>(d.side[0].data + formats::data_bytes<F>(row));
  fetch<formats::data_bytes<F>(edge), 1>(d.side[1].data + formats::data_bytes<F>(column));
}

// ---- rows
// Functions of their own, not inlined, so that the compiler sees each loop alone and turns it into vectors.

template <class Source>
using Stored = typename Source::Stored;

/// Calls f(n); for a whole row n is a constant, so that its loop has neither a tail nor a test for one.
template <class F>
[[gnu::always_inline]] inline void with_length(int n, const F& f) {
  if (n == edge)
    f(std::integral_constant<int, edge>());
  else
    f(n);
}

/// The integer type of a magnitude's bits: 16 bits for bf16 values, which doubles the elements of a vector.
template <class Source>
using Bits = std::conditional_t<std::is_same_v<Source, FromBf16>, std::uint16_t, std::uint32_t>;

/// |x| of a stored value, as bits that order as magnitudes do; 0 for NaN. Masters are rounded after the maximum.
template <class Source>
inline Bits<Source> bits_of(Stored<Source> x) {
  if constexpr (std::is_same_v<Source, FromBf16>) {
    const auto u = static_cast<std::uint16_t>(x & 0x7FFF);
    return u & static_cast<std::uint16_t>(static_cast<std::int16_t>(u - 0x7F81) >> 15);  // a mask, as in magnitude()
  } else {
    return magnitude(x);
  }
}
template <class Source>
inline float value_of(Bits<Source> bits) {
  return Source::value(std::bit_cast<Stored<Source>>(bits));
}

/// top[c] = the larger of itself and |x[c]|.
template <class Source>
[[gnu::noinline]] void largest_by_column(const Stored<Source>* __restrict x, int length, Bits<Source>* __restrict top) {
  with_length(length, [&](auto n) __attribute__((always_inline)) {
    for (int c = 0; c < n; ++c) top[c] = std::max(top[c], bits_of<Source>(x[c]));
  });
}

/// by_block[j] = the largest of columns [j width, (j + 1) width).
template <int width, class T>
[[gnu::noinline]] void fold(const T* __restrict by_column, T* __restrict by_block) {
  for (int j = 0; j < edge / width; ++j) {
    T top = 0;
    for (int c = 0; c < width; ++c) top = std::max(top, by_column[j * width + c]);
    by_block[j] = top;
  }
}

/// by_block[j] = the largest magnitude of x[j width ..], of at most `width` values.
template <class Source, int width>
[[gnu::noinline]] void largest_by_block(const Stored<Source>* __restrict x, int n, Bits<Source>* __restrict by_block) {
  const int whole = n / width;
  for (int j = 0; j < whole; ++j) {
    Bits<Source> top = 0;
    for (int c = 0; c < width; ++c) top = std::max(top, bits_of<Source>(x[j * width + c]));
    by_block[j] = top;
  }
  if (whole * width == n) return;
  by_block[whole] = 0;
  for (int c = whole * width; c < n; ++c) by_block[whole] = std::max(by_block[whole], bits_of<Source>(x[c]));
}

/// Encodes fast and checks: rows with a NaN or a subnormal code are rare, and are encoded again by the full rule.
template <class Element, class Source>
[[gnu::noinline]] void encode_row(const Stored<Source>* __restrict x, const float* __restrict multipliers, int length,
                                  std::uint8_t* __restrict codes) {
  with_length(length, [&](auto n) __attribute__((always_inline)) {
    if constexpr (requires { Element::encode_regular(0.0f); } && Element::bits == 8) {
      std::uint32_t furthest = 0;
      for (int c = 0; c < n; ++c) {
        const float v = Source::value(x[c]) * multipliers[c];
        furthest = std::max(furthest, Element::beyond_least_normal(v));
        codes[c] = static_cast<std::uint8_t>(Element::encode_regular(v));
      }
      if (furthest <= Element::last_regular) return;
    }
    for (int c = 0; c < n; ++c)
      codes[c] = static_cast<std::uint8_t>(Element::encode(Source::value(x[c]) * multipliers[c]));
  });
}
template <class Source>
[[gnu::noinline]] void encode_row_at_random(const Stored<Source>* __restrict x, const float* __restrict multipliers,
                                            const std::uint8_t* __restrict draws, int length,
                                            std::uint8_t* __restrict codes) {
  with_length(length, [&](auto n) __attribute__((always_inline)) {
    for (int c = 0; c < n; ++c)
      codes[c] = static_cast<std::uint8_t>(formats::e2m1_stochastic(Source::value(x[c]) * multipliers[c], draws[c]));
  });
}

/// Vectors are as wide as this CPU's registers. A shuffle of wider ones would be compiled element by element, and their
/// calling convention would depend on the compiler's options.
#if defined(__AVX512BW__)
inline constexpr int vector_bytes = 64;
#elif defined(__AVX2__)
inline constexpr int vector_bytes = 32;
#else
inline constexpr int vector_bytes = 16;
#endif

typedef std::uint32_t Words __attribute__((vector_size(vector_bytes), aligned(4), may_alias));
typedef std::uint16_t Halves __attribute__((vector_size(vector_bytes), aligned(2), may_alias));

template <int... k>
inline Halves odd_halves(Words a, Words b, std::integer_sequence<int, k...>) {
  return __builtin_shufflevector(reinterpret_cast<Halves>(a), reinterpret_cast<Halves>(b), (2 * k + 1)...);
}

/// Rounds n values (a multiple of 32) to bf16, as bf16's constructor does. Picks the upper halves of rounded words by a
/// shuffle, which compilers do not find in a shift and a conversion.
inline void round_words(const float* __restrict x, std::int64_t n, std::uint16_t* __restrict out) {
  constexpr int width = sizeof(Words) / sizeof(float), ahead = 2048;
  const auto rounded = [x](std::int64_t i) {
    const Words bits = *reinterpret_cast<const Words*>(x + i);
    const auto nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
    return nan ? bits | 0x400000u : bits + 0x7FFFu + ((bits >> 16) & 1u);
  };
  for (std::int64_t i = 0; i < n; i += 2 * width) {
    fetch<2 * sizeof(Words), 0>(x + i + ahead);
    *reinterpret_cast<Halves*>(out + i) =
        odd_halves(rounded(i), rounded(i + width), std::make_integer_sequence<int, 2 * width>());
  }
}

/// Encodes values of a format without scales. A code that is bf16 needs no rounding to bf16 before.
template <class Element, class Source>
[[gnu::noinline]] void encode_plain(const Stored<Source>* __restrict x, std::int64_t n,
                                    typename Element::Storage* __restrict out) {
  std::int64_t done = 0;
  if constexpr (std::is_same_v<Stored<Source>, float> && std::is_same_v<Element, formats::Bf16::Element>)
    round_words(x, done = n / 32 * 32, out);
  for (std::int64_t i = done; i < n; ++i)
    out[i] = static_cast<typename Element::Storage>(Element::encode(Source::value(x[i])));
}

/// The bytes of n <= 128 indices from `first` on, their blocks side by side: eight, or nine where the first is cut.
template <int lanes>
[[gnu::noinline]] void draw_lanes(RandomKey key, std::uint64_t first, int n, std::uint8_t* __restrict out) {
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
inline void draw_row(RandomKey key, std::uint64_t first, int n, std::uint8_t* out) {
  first % 16 == 0 ? draw_lanes<8>(key, first, n, out) : draw_lanes<16>(key, first, n, out);
}

/// Packs two codes into a byte, the even one low. Works on pairs of bytes in a word (the host is little-endian). n is
/// even.
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

/// Copies n <= 128 codes of a byte each. The common size, a whole row, is a constant and compiles without a call.
inline void copy_codes(const void* codes, int n, void* out) {
  n == edge ? std::memcpy(out, codes, edge) : std::memcpy(out, codes, static_cast<std::size_t>(n));
}

/// Stores a row of n codes; n is even if two codes share a byte.
template <class Element>
inline void store_row(const std::uint8_t* codes, int n, std::byte* out) {
  if constexpr (Element::bits == 8)
    copy_codes(codes, n, out);
  else
    pack_nibbles(codes, n, reinterpret_cast<std::uint8_t*>(out));
}

/// Largest magnitude of a member's owned patches; `of_patches` has one entry per unit. 0 if none is owned.
inline float largest_of_member(const Descriptor& d, std::int64_t member, const float* of_patches) {
  const UnitRange range = owned_patches(d, member);
  float most = 0;
  for (std::int64_t i = range.begin; i < range.end; ++i) most = std::max(most, of_patches[i]);
  return most;
}

// ---- transposition

inline constexpr int lane = 16, lanes = vector_bytes / lane;  // bytes, of a vector that is shuffled lane by lane
typedef std::uint8_t Vector __attribute__((vector_size(vector_bytes), may_alias));
typedef std::uint8_t Lane __attribute__((vector_size(lane), may_alias));

/// Interleaves bytes of a and b lane by lane: the lanes' first halves (half 0) or second halves (half 1).
template <int half, int... k>
inline Vector interleaved(Vector a, Vector b, std::integer_sequence<int, k...>) {
  constexpr auto from = [](int i) { return i / lane * lane + half * lane / 2 + i % lane / 2 + (i % 2) * lane * lanes; };
  return __builtin_shufflevector(a, b, from(k)...);
}
template <int l, int... k>
inline Lane lane_of(Vector v, std::integer_sequence<int, k...>) {
  return __builtin_shufflevector(v, v, (l * lane + k)...);
}

/// Transposes squares of 16 x 16 bytes in sixteen row vectors: four rounds that interleave the bytes of rows r and
/// r + 8. Row i then holds columns i, 16 + i, ... of as many lanes as there are.
inline void transpose_squares(Vector (&rows)[lane]) {
  constexpr std::make_integer_sequence<int, lane * lanes> all;
#pragma GCC unroll 4
  for (int pass = 0; pass < 4; ++pass) {
    Vector mixed[lane];
#pragma GCC unroll 8
    for (int i = 0; i < lane / 2; ++i) {
      mixed[2 * i] = interleaved<0>(rows[i], rows[i + lane / 2], all);
      mixed[2 * i + 1] = interleaved<1>(rows[i], rows[i + lane / 2], all);
    }
#pragma GCC unroll 16
    for (int i = 0; i < lane; ++i) rows[i] = mixed[i];
  }
}

[[gnu::noinline]] inline void transpose(const Codes& __restrict from, Codes& __restrict to) {
  constexpr std::make_integer_sequence<int, lane> one;
  for (int row = 0; row < edge; row += lane)
    for (int column = 0; column < edge; column += lane * lanes) {
      Vector rows[lane];
#pragma GCC unroll 16
      for (int i = 0; i < lane; ++i) rows[i] = *reinterpret_cast<const Vector*>(from.row(row + i) + column);
      transpose_squares(rows);
      const auto store = [&]<int... l>(int i, std::integer_sequence<int, l...>) {
        ((*reinterpret_cast<Lane*>(to.row(column + l * lane + i) + row) = lane_of<l>(rows[i], one)), ...);
      };
#pragma GCC unroll 16
      for (int i = 0; i < lane; ++i) store(i, std::make_integer_sequence<int, lanes>());
    }
}

/// Stores rows [begin, end) of the patch's codes, transposed, in the columnwise copy.
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

/// The scales of a patch's lines on one side: of each, or one for all.
template <Format F>
class LineScales {
 public:
  explicit LineScales(const TensorScale& one) { scales_[0] = one; }
  LineScales(const Descriptor& d, const Patch& p, Side side) {
    if (d.side[static_cast<int>(side)].amax == nullptr) return;
    const int lines = !formats::by_lines<F> ? 1 : side == Side::rowwise ? p.rows : p.columns;
    for (int i = 0; i < lines; ++i) scales_[i] = F::tensor_scale(amax_at<F>(side, d, p, i, i));
  }
  const TensorScale& operator[](int line) const { return scales_[formats::by_lines<F> ? line : 0]; }

 private:
  TensorScale scales_[formats::by_lines<F> ? edge : 1];
};

/// Encodings of n blocks, `in_line` of each line.
template <Format F, class Source, int n, int in_line = n>
[[gnu::noinline]] void encode_scales(const Bits<Source>* __restrict amax, const LineScales<F>& lines,
                                     typename F::Scale* __restrict scales, float* __restrict multipliers) {
  for (int i = 0; i < n; ++i) {
    const auto encoding = F::encoding(value_of<Source>(amax[i]), lines[i / in_line]);
    scales[i] = encoding.scale;
    multipliers[i] = encoding.multiplier;
  }
}

/// errors[c] += the error of x[c] under its multiplier.
template <Format F, class Source>
[[gnu::noinline]] void add_errors(const Stored<Source>* __restrict x, const float* __restrict multipliers, int length,
                                  std::uint32_t* __restrict errors) {
  using Element = typename F::Element;
  with_length(length, [&](auto n) __attribute__((always_inline)) {
    for (int c = 0; c < n; ++c) {
      const float v = Source::value(x[c]) * multipliers[c];
      errors[c] += F::error(v, Element::decode(Element::encode(v)));
    }
  });
}

/// Spreads each block's multiplier over the block's columns.
template <int width>
inline void spread(const float* by_block, float* by_column) {
  for (int j = 0; j < edge / width; ++j)
    for (int c = 0; c < width; ++c) by_column[j * width + c] = by_block[j];
}

/// Where a format has two encodings, takes the one that loses less: of each block, of columns [j width, (j + 1) width)
/// and rows [begin, end). `scales` and `multipliers` are those of F::encoding().
template <Format F, class Source, int width, class Row>
void choose(const Row& row, int begin, int end, int n, const Bits<Source>* amax, TensorScale tensor,
            typename F::Scale* scales, float* multipliers) {
  constexpr int blocks = edge / width;
  std::uint32_t of_columns[2][edge] = {};  // a block has at most sixteen rows of at most 2^26 each
  typename F::Scale other[blocks];
  float others[blocks], by_column[2][edge];
  for (int j = 0; j < blocks; ++j) {
    const auto encoding = F::other_encoding(value_of<Source>(amax[j]), tensor);
    other[j] = encoding.scale;
    others[j] = encoding.multiplier;
  }
  spread<width>(multipliers, by_column[0]);
  spread<width>(others, by_column[1]);
  for (int r = begin; r < end; ++r)
    for (int k = 0; k < 2; ++k) add_errors<F, Source>(row(r), by_column[k], n, of_columns[k]);
  for (int j = 0; j < blocks; ++j) {
    std::uint64_t errors[2] = {};
    for (int k = 0; k < 2; ++k)
      for (int c = j * width; c < (j + 1) * width; ++c)  // mutation: half_a_block_decides
        errors[k] += of_columns[k][c];
    if (!F::takes_other(scales[j], errors[0], other[j], errors[1])) continue;
    scales[j] = other[j];
    multipliers[j] = others[j];
  }
}

/// Stores the patch's part of a scale array, from block rows [begin, end) of its grid. Padding below is written by the
/// owner of the matrix's last row.
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

/// Stores one scale per block: the compact form that travels.
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

/// Stores the scales of a square format: in both arrays, or in the array that travels.
template <Format F>
inline void store_square_scales(const Descriptor& d, const Patch& p, const Grid<F, Side::rowwise>& grid, int begin,
                                int end) {
  if (d.block_scales != nullptr) return store_block_scales<F>(d, p, grid, begin, end);
  store_scales<F, Side::rowwise>(d, p, grid, begin, end);
  store_scales<F, Side::columnwise>(d, p, grid, begin, end);
}

}  // namespace tessera::quantizer::host
