#pragma once
#include "kernels/quantize/patch.cuh"

/// Device code: encodes eight values of a row, transposes sixteen rows of codes, stores both.
namespace tessera::quantizer::device {

/// Codes of eight neighbours: 8 bytes, or 4 of nibbles.
template <class Element>
struct Run {
  static constexpr int words = Element::bits / 4;
  std::uint32_t word[words];
};

/// Two E4M3 codes rounded by hardware, which rounds exactly as E4M3::encode does.
__device__ inline std::uint32_t e4m3_pair(float low, float high) {
  std::uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ inline Run<formats::E4M3> encode_run(formats::E4M3, const float (&v)[run]) {
  return {{e4m3_pair(v[0], v[1]) | e4m3_pair(v[2], v[3]) << 16, e4m3_pair(v[4], v[5]) | e4m3_pair(v[6], v[7]) << 16}};
}

/// The same for E5M2.
__device__ inline std::uint32_t e5m2_pair(float low, float high) {
  std::uint16_t pair;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ inline Run<formats::E5M2> encode_run(formats::E5M2, const float (&v)[run]) {
  return {{e5m2_pair(v[0], v[1]) | e5m2_pair(v[2], v[3]) << 16, e5m2_pair(v[4], v[5]) | e5m2_pair(v[6], v[7]) << 16}};
}

/// The sign bits of eight values, each in the top bit of its nibble.
__device__ inline std::uint32_t signs_of(const float (&v)[run]) {
  const auto four = [&](int first) {
    const auto two = [&](int c) { return __byte_perm(__float_as_uint(v[c]), __float_as_uint(v[c + 2]), 0x0073); };
    return __byte_perm(two(first), two(first + 4), 0x5410);
  };
  return (four(0) >> 4 & 0x08080808u) | (four(1) & 0x80808080u);
}

/// E2M1 by one addition. The value is added to a power of two whose last bit is worth half a unit of the value's own
/// binade. The sum is rounded to the code's grid, ties to even. Its last bits are the code. v is a product, so a NaN
/// has no sign.
__device__ inline Run<formats::E2M1> encode_run(formats::E2M1, const float (&v)[run]) {
  constexpr std::uint32_t up = 22u << 23, least = 149u << 23, offset = 298u;  // 2 * 149: what the exponent adds at 1
  std::uint32_t four[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    std::uint32_t codes = 0;
#pragma unroll
    for (int c = 3; c >= 0; --c) {
      const float a = fminf(fabsf(v[half * 4 + c]), 6.0f);
      const std::uint32_t binade = larger(__float_as_uint(a) + up, least) & 0x7F800000u;
      const float sum = a + __uint_as_float(binade + (binade >> 22));
      codes = (codes << 4) + __float_as_uint(sum);
    }
    four[half] = codes - offset * 0x1111u;  // the code is in the low 16 bits; the exponent's rest above is dropped
  }
  return {{__byte_perm(four[0], four[1], 0x5410) | signs_of(v)}};
}
template <class Element>
__device__ Run<Element> encode_run(Element, const float (&v)[run]) {
  Run<Element> codes{};
#pragma unroll
  for (int c = 0; c < run; ++c) codes.word[c * Element::bits / 32] |= Element::encode(v[c]) << (c * Element::bits % 32);
  return codes;
}

/// Encodes row r of the thread's values; each column has its own multiplier.
template <class Element, class X>
__device__ Run<Element> encode_row(const X& x, int r, const float (&multiplier)[run]) {
  float v[run];
#pragma unroll
  for (int c = 0; c < run; ++c) v[c] = x.value(r, c) * multiplier[c];
  return encode_run(Element(), v);
}

/// The sign bits of eight bf16, each in the top bit of its nibble.
__device__ inline std::uint32_t signs_of(const std::uint32_t (&pair)[run / 2]) {
  const std::uint32_t a = __byte_perm(pair[0], pair[1], 0x7351), b = __byte_perm(pair[2], pair[3], 0x7351);
  return (__byte_perm(a, b, 0x5410) >> 4 & 0x08080808u) | (__byte_perm(a, b, 0x7632) & 0x80808080u);
}
/// The E2M1 code of a magnitude, in the low bits of the fp32 number 2^23 + code. Codes are evenly spaced in three
/// stretches of length 2; adding 2^23 rounds to integers, ties to even. Uses multipliers only, of which a GPU has twice
/// as many as of other units. Not for NaN.
__device__ inline std::uint32_t e2m1_unsigned(float v) {
  const float below2 = __saturatef(v * 0.5f), below4 = __saturatef(__fmaf_rn(v, 0.5f, -1.0f)),
              below6 = __saturatef(__fmaf_rn(v, 0.5f, -2.0f));
  return __float_as_uint(__fmaf_rn(below4, 2.0f, __fmaf_rn(below2, 4.0f, 0x1p23f)) + below6);
}

/// Encodes row r of bf16 values without NaN, all times one multiplier.
__device__ inline Run<formats::E2M1> encode_e2m1(const Pairs& x, int r, float multiplier) {
  std::uint32_t codes = 0;
#pragma unroll
  for (int c = run - 1; c >= 0; --c) {
    const std::uint32_t pair = x.pair[r][c / 2], bits = c % 2 == 0 ? (pair & 0x7FFFu) << 16 : pair & 0x7FFF0000u;
    codes = codes * 16 + e2m1_unsigned(__uint_as_float(bits) * multiplier);
  }
  // The exponents of the last two numbers are still in the upper bits.
  return {{codes - 0x4B000000u * 0x11u + signs_of(x.pair[r])}};
}

/// Encodes row r of the thread's values, times one multiplier. If the format has no NaN, the values must hold none.
template <class Element, class X>
__device__ Run<Element> encode_row(const X& x, int r, float multiplier) {
  if constexpr (X::narrow && std::is_same_v<Element, formats::E2M1>) {
    return encode_e2m1(x, r, multiplier);
  } else {
    float v[run];
#pragma unroll
    for (int c = 0; c < run; ++c) v[c] = x.value(r, c) * multiplier;
    return encode_run(Element(), v);
  }
}

/// The same for values that may hold NaN: holds_nan() says whether the thread's do.
template <class Element, class X>
__device__ Run<Element> encode_row(const X& x, int r, float multiplier, bool nan) {
  if (!nan) return encode_row<Element>(x, r, multiplier);
  float v[run];
#pragma unroll
  for (int c = 0; c < run; ++c) v[c] = x.value(r, c) * multiplier;
  return encode_run(Element(), v);
}

/// Stochastic rounding of two values' magnitudes to E2M1, as formats::e2m1_stochastic() does, in bits 9 and up
/// of a word's halves; what stands below means nothing. The random bytes are the halves' low bytes.
///
/// A magnitude times 2^-14, as an fp16 number, has its code in these bits and below them nine bits of what is beyond
/// the code. The random byte is added to the upper eight. Lesser bits never decide, but for this: e2m1_stochastic()
/// rounds its sum, so that magnitudes 2^-26 or less below what would reach code 1 reach it too. 2^-26 makes no other
/// magnitude reach a code.
__device__ inline std::uint32_t magnitudes_at_random(float low, float high, std::uint32_t draws) {
  constexpr std::uint32_t largest_codes = 0x0E000E00u;
  const auto scaled = [](float x) { return __fmaf_rz(fabsf(x), 0x1p-14f, 0x1p-40f); };
  std::uint32_t halves;
  asm("cvt.rz.f16x2.f32 %0, %1, %2;" : "=r"(halves) : "f"(scaled(high)), "f"(scaled(low)));
  asm("min.f16x2 %0, %0, %1;" : "+r"(halves) : "r"(largest_codes));  // of NaN too
  return halves + 2 * draws;
}

/// Codes of eight values by stochastic rounding; `draw(i)` gives the random bytes of elements i and i + 2. The values
/// are products, so a NaN has no sign.
template <class Draw>
__device__ Run<formats::E2M1> encode_run_at_random(const float (&v)[run], const Draw& draw) {
  const auto two = [&](int c) { return magnitudes_at_random(v[c], v[c + 2], draw(c)); };
  const auto four = [&](int c) { return __byte_perm(two(c), two(c + 4), 0x7531); };  // twice the code, and a lost bit
  return {{(four(0) >> 1 & 0x07070707u) | (four(1) << 3 & 0x70707070u) | signs_of(v)}};
}

/// Two fp16 numbers.
__device__ inline void widen(std::uint32_t halves, float& low, float& high) {
  asm("{.reg .f16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high;}"
      : "=f"(low), "=f"(high)
      : "r"(halves));
}
/// The values of two E4M3 codes, as fp16 numbers.
__device__ inline std::uint32_t e4m3_values(std::uint32_t pair) {
  std::uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<std::uint16_t>(pair)));
  return halves;
}
/// The values of eight codes.
__device__ inline void decode_run(formats::E4M3, const Run<formats::E4M3>& codes, float (&v)[run]) {
#pragma unroll
  for (int i = 0; i < run / 2; ++i) widen(e4m3_values(codes.word[i / 2] >> (i % 2 * 16)), v[2 * i], v[2 * i + 1]);
}
/// E5M2 codes are the upper bytes of fp16 numbers.
__device__ inline void decode_run(formats::E5M2, const Run<formats::E5M2>& codes, float (&v)[run]) {
#pragma unroll
  for (int i = 0; i < run / 2; ++i)
    widen(__byte_perm(codes.word[i / 2], 0, i % 2 == 0 ? 0x1404 : 0x3424), v[2 * i], v[2 * i + 1]);
}
/// E2M1 codes are shifted into fp32's exponent and mantissa, where they are tiny numbers, subnormals included.
__device__ inline void decode_run(formats::E2M1, const Run<formats::E2M1>& codes, float (&v)[run]) {
#pragma unroll
  for (int c = 0; c < run; ++c) {
    const std::uint32_t code = codes.word[0] >> (4 * c);
    v[c] = __uint_as_float((code & 7u) << 22 | (code & 8u) << 28) * 0x1p126f;
  }
}
template <class Element>
__device__ void decode_run(Element, const Run<Element>& codes, float (&v)[run]) {
  constexpr std::uint32_t mask = (1u << Element::bits) - 1;
#pragma unroll
  for (int c = 0; c < run; ++c)
    v[c] = Element::decode(codes.word[c * Element::bits / 32] >> (c * Element::bits % 32) & mask);
}

/// Rounds eight scaled values to the element's grid, as encode_run() and decode_run() do.
template <class Element>
__device__ void round_run(Element, const float (&v)[run], float (&y)[run]) {
  decode_run(Element(), encode_run(Element(), v), y);
}
/// The same for E2M1. A power of two is added whose last bit is worth half a unit of its own binade. So a magnitude is
/// rounded to the element's grid, ties to even. A product that is NaN has no sign, and becomes 6.
__device__ inline void round_run(formats::E2M1, const float (&v)[run], float (&y)[run]) {
  constexpr std::uint32_t up = 22u << 23, least = 149u << 23;
#pragma unroll
  for (int c = 0; c < run; ++c) {
    const float a = fminf(fabsf(v[c]), 6.0f);
    const float grid = __uint_as_float(larger(__float_as_uint(a) + up, least) & 0x7F800000u);
    y[c] = copysignf((a + grid) - grid, v[c]);
  }
}

/// Loads a run of codes; the address is a multiple of its size.
template <class Element>
__device__ Run<Element> load_run(const std::byte* from) {
  Run<Element> codes;
  if constexpr (Run<Element>::words == 1) {
    codes.word[0] = __ldcs(reinterpret_cast<const std::uint32_t*>(from));
  } else if constexpr (Run<Element>::words == 2) {
    const uint2 v = load_once(reinterpret_cast<const uint2*>(from));
    codes.word[0] = v.x, codes.word[1] = v.y;
  } else {
    const uint4 v = load_once(reinterpret_cast<const uint4*>(from));
    codes.word[0] = v.x, codes.word[1] = v.y, codes.word[2] = v.z, codes.word[3] = v.w;
  }
  return codes;
}
/// Loads elements [0, n) of a run from any address.
template <class Element>
__device__ Run<Element> load_some(const std::byte* from, int n) {
  Run<Element> codes{};
#pragma unroll
  for (int i = 0; i < run * Element::bits / 8; ++i)
    if (i * 8 < n * Element::bits) codes.word[i / 4] |= static_cast<std::uint32_t>(from[i]) << (8 * (i % 4));
  return codes;
}

/// Stores codes [first, end) of a run to `out`. A nibble whose byte is shared with a code outside leaves that code as
/// it is.
template <class Element>
__device__ void store_some(std::byte* out, const Run<Element>& codes, int first, int end) {
#pragma unroll
  for (int c = 0; c < run; ++c) {
    if (c < first || c >= end) continue;
    const std::uint32_t code = codes.word[c * Element::bits / 32] >> (c * Element::bits % 32);
    if constexpr (Element::bits == 4) {
      auto* byte = reinterpret_cast<std::uint8_t*>(out) + c / 2;
      *byte = static_cast<std::uint8_t>(c % 2 == 0 ? (*byte & 0xF0u) | (code & 15u) : (*byte & 15u) | code << 4);
    } else {
      reinterpret_cast<typename Element::Storage*>(out)[c] = static_cast<typename Element::Storage>(code);
    }
  }
}
template <class Element, class Extent>
__device__ void store_row(std::byte* out, const Run<Element>& codes, const Seat& seat, int r, const Extent& extent) {
  if constexpr (Extent::all) {
    if (extent.holds(seat)) store_once(out, codes.word);
  } else {
    const int first = extent.first(seat.row + r) - seat.column, end = extent.end(seat.row + r) - seat.column;
    if (extent.vectors && first <= 0 && end >= run)
      store_once(out, codes.word);
    else
      store_some<Element>(out, codes, first, end);
  }
}

template <Format F>
__device__ std::byte* row_of(const Descriptor& d, const Patch& p, Side side, const Seat& seat) {
  return d.side[static_cast<int>(side)].data +
         formats::data_bytes<F>(origin_of(d, p) + seat.row * d.matrix.columns + seat.column);
}

/// Stores values of formats without scales bit by bit: a NaN keeps its payload.
template <Format F, class Source, class Extent>
__device__ void store_plain(const Descriptor& d, const Patch& p, const Extent& extent) {
  using Element = typename F::Element;
  const Seat seat;
  const auto* from = SourcePatch<Source>(d, p).origin + seat.row * d.matrix.columns + seat.column;
  std::byte* out = row_of<F>(d, p, Side::rowwise, seat);
#pragma unroll
  for (int r = 0; r < height; ++r) {
    const auto* row = from + r * d.matrix.columns;
    float v[run];
    if constexpr (Extent::all && sizeof(*from) == sizeof(float)) {
      load_floats(row, v);
    } else {
#pragma unroll
      for (int c = 0; c < run; ++c) {
        const bool there = seat.column + c >= extent.first(seat.row + r) && seat.column + c < extent.end(seat.row + r);
        v[c] = there ? Source::value(row[c]) : 0.0f;
      }
    }
    store_row<Element>(out + formats::data_bytes<F>(r * d.matrix.columns), encode_run(Element(), v), seat, r, extent);
  }
}

// ---- transposition

/// Transposes the bytes of four words.
__device__ inline void turn_bytes(std::uint32_t (&w)[4]) {
  const std::uint32_t a = __byte_perm(w[0], w[1], 0x5140), b = __byte_perm(w[2], w[3], 0x5140);
  const std::uint32_t c = __byte_perm(w[0], w[1], 0x7362), d = __byte_perm(w[2], w[3], 0x7362);
  w[0] = __byte_perm(a, b, 0x5410), w[1] = __byte_perm(a, b, 0x7632);
  w[2] = __byte_perm(c, d, 0x5410), w[3] = __byte_perm(c, d, 0x7632);
}

/// Sixteen codes of a column, in storage order.
template <class Element>
struct Column {
  static constexpr int words = Element::bits / 2;
  std::uint32_t word[words];
};

template <class Element>
requires(Element::bits == 8) __device__ void turn(const Run<Element> (&rows)[height], Column<Element> (&columns)[run]) {
#pragma unroll
  for (int i = 0; i < height / 4; ++i)
#pragma unroll
    for (int j = 0; j < run / 4; ++j) {
      std::uint32_t w[4] = {rows[4 * i].word[j], rows[4 * i + 1].word[j], rows[4 * i + 2].word[j],
                            rows[4 * i + 3].word[j]};
      turn_bytes(w);
#pragma unroll
      for (int c = 0; c < 4; ++c) columns[4 * j + c].word[i] = w[c];
    }
}
/// Transposes nibbles: rows are first paired in bytes, even and odd columns apart.
template <class Element>
requires(Element::bits == 4) __device__ void turn(const Run<Element> (&rows)[height], Column<Element> (&columns)[run]) {
  constexpr std::uint32_t low = 0x0F0F0F0Fu;
#pragma unroll
  for (int i = 0; i < height / 8; ++i) {
    std::uint32_t even[4], odd[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const std::uint32_t a = rows[8 * i + 2 * k].word[0], b = rows[8 * i + 2 * k + 1].word[0];
      even[k] = (a & low) | (b << 4 & ~low);
      odd[k] = (a >> 4 & low) | (b & ~low);
    }
    turn_bytes(even);
    turn_bytes(odd);
#pragma unroll
    for (int c = 0; c < 4; ++c) columns[2 * c].word[i] = even[c], columns[2 * c + 1].word[i] = odd[c];
  }
}

/// The codes of an area, transposed in shared memory: one line per column, in units of sixteen codes, placed against
/// bank conflicts.
template <class Element, Area area = one_patch>
class Turned {
 public:
  static constexpr int bytes = area.rows * area.columns * Element::bits / 8;

  __device__ explicit Turned(std::byte* shared) : units_(reinterpret_cast<Unit*>(shared)) {}

  __device__ void put(const Run<Element> (&rows)[height], const Seat& seat) const {
    Column<Element> columns[run];
    turn(rows, columns);
#pragma unroll
    for (int c = 0; c < run; ++c) put(columns[c], seat, c);
  }
  __device__ void put(const Column<Element>& column, const Seat& seat, int c) const {
    Unit unit;
    memcpy(&unit, column.word, sizeof unit);
    units_[place(seat.column + c, seat.row / height)] = unit;
  }

  /// Stores `lines` lines from `out` on, `length` codes apart; of each line the codes of rows [0, rows). Whole units
  /// only: `out` and the lines are aligned to them. Called by `team` threads.
  template <int team = threads>
  __device__ void store(std::byte* out, std::int64_t length, int lines = area.columns, int rows = area.rows) const {
    const int unit = static_cast<int>(threadIdx.x) % per_line, first = static_cast<int>(threadIdx.x) / per_line;
    if (unit * height >= rows) return;
    const std::int64_t line_bytes = length * Element::bits / 8;
    std::byte* to = out + first * line_bytes + unit * sizeof(Unit);
#pragma unroll
    for (int k = 0; k < area.columns * per_line / team; ++k, to += team / per_line * line_bytes)
      if (const int line = first + k * (team / per_line); line < lines)
        __stcs(reinterpret_cast<Unit*>(to), units_[place(line, unit)]);
  }
  /// store() for any alignment and rows [begin, end). Nibbles come in pairs.
  __device__ void store_some(std::byte* out, std::int64_t length, int lines, int begin, int end) const {
    constexpr int per_unit = sizeof(Unit);
    const auto* bytes_here = reinterpret_cast<const std::byte*>(units_);
    begin = begin * Element::bits / 8, end = end * Element::bits / 8;
    for (int q = static_cast<int>(threadIdx.x); q < lines * (end - begin); q += static_cast<int>(blockDim.x)) {
      const int line = q / (end - begin), at = begin + q % (end - begin);
      out[line * (length * Element::bits / 8) + at] = bytes_here[place(line, at / per_unit) * per_unit + at % per_unit];
    }
  }

 private:
  using Unit = std::conditional_t<Element::bits == 8, uint4, uint2>;
  static constexpr int per_line = area.rows / height, all_banks = 128 / sizeof(Unit);

  /// Where a unit of a line stands. Lanes that write together hold lines that are eight bytes of codes apart; lanes
  /// that read together hold the units of one line. If a line spans half of the banks: lines eight codes apart, and
  /// units of two lines.
  __device__ static int place(int line, int unit) {
    static_assert(per_line == all_banks || 2 * per_line == all_banks);
    if constexpr (per_line == all_banks) return line * per_line + (unit ^ line / (64 / Element::bits) % per_line);
    const int group = line / run;
    return (line ^ group % 2) * per_line + (unit ^ group / 2);
  }

  Unit* units_;
};

}  // namespace tessera::quantizer::device
