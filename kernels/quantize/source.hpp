#pragma once
#include <type_traits>

#include "kernels/quantize/quantize.hpp"

/// How the values of a table are read.
namespace tessera::quantizer {

/// How quantizers read a value: bf16; fp32 rounded to bf16 first (all weights); or fp32 as it is.
struct FromBf16 {
  using Stored = std::uint16_t;
  TESSERA_FN static float value(std::uint16_t bits) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
};
struct FromMaster {
  using Stored = float;
  TESSERA_FN static float value(float x) { return bf16(x); }
};
struct FromFp32 {
  using Stored = float;
  TESSERA_FN static float value(float x) { return x; }
};

/// A gelu, or its gradient, computed in fp32 from the stored bf16 x (of the gradient: Descriptor::pre) and rounded to
/// bf16:
/// gelu(x), x gelu'(pre).
struct FromGelu : FromBf16 {};
struct FromGeluGradient : FromBf16 {};
/// A swiglu of the stored gates and ups [M,2F], or of its gradient the half to which a patch belongs, likewise. Of a
/// swiglu Descriptor::pre are gates and ups; of a gradient [M,2F] they are the stored values, and pre is dy [M,F].
struct FromSwiglu : FromBf16 {};
struct FromSwigluGradient : FromBf16 {};
/// Stored bf16 of which column sums are wanted.
struct FromSummed : FromBf16 {};
template <class Source>
concept OfGelu = std::is_same_v<Source, FromGelu> || std::is_same_v<Source, FromGeluGradient>;
template <class Source>
concept OfSwiglu = std::is_same_v<Source, FromSwiglu> || std::is_same_v<Source, FromSwigluGradient>;
template <class Source>
concept Computed = OfGelu<Source> || OfSwiglu<Source>;
/// Sources with column sums, where Descriptor::column_sums is given.
template <class Source>
concept Summed = std::is_same_v<Source, FromSummed> || std::is_same_v<Source, FromGeluGradient> ||
                 std::is_same_v<Source, FromSwigluGradient>;

/// Where a patch of a swiglu, or of its gradient, finds the rows of its sources: the first row's, and the distances.
struct SwigluPlaces {
  const std::uint16_t *gate, *up, *dy;  ///< dy: of a gradient alone
  std::int64_t pitch, dy_pitch;
  bool of_up;  ///< of a gradient: whether the patch is of the up half
};
template <class Source>
TESSERA_FN inline SwigluPlaces swiglu_places(const Descriptor& d, const Patch& p) {
  constexpr bool gradient = std::is_same_v<Source, FromSwigluGradient>;
  const std::int64_t width = gradient ? d.matrix.columns / 2 : d.matrix.columns;
  const bool of_up = p.column >= width;
  const std::int64_t column = p.column - (of_up ? width : 0);
  const auto* both = gradient ? reinterpret_cast<const std::uint16_t*>(d.values) : d.pre;
  const std::uint16_t* const gate = both + p.row * 2 * width + column;
  return {gate, gate + width, gradient ? d.pre + p.row * width + column : nullptr, 2 * width, width, of_up};
}

/// Compile-time options of quantize() for a patch: what is done to values by a format that takes it.
template <class SourceType, bool rotated = false, bool drawn = false>
struct Mode {
  using Source = SourceType;
  static constexpr bool rotates = rotated, draws = drawn;
};

/// Calls f.template operator()<Mode<Source, ...>>() with the mode of `purpose`.
template <formats::Format F, class Source, class Use>
void with_purpose(const Purpose& purpose, const Use& f) {
  if constexpr (formats::may_draw<F>) {
    if (purpose.rotates && purpose.draws) return f.template operator()<Mode<Source, true, true>>();
    if (!purpose.rotates && purpose.draws) return f.template operator()<Mode<Source, false, true>>();
  }
  if constexpr (F::hadamard)
    if (purpose.rotates) return f.template operator()<Mode<Source, true>>();
  f.template operator()<Mode<Source>>();
}

/// Bits of |x|, which order like the magnitudes; 0 for NaN, so that a maximum ignores it.
TESSERA_FN inline std::uint32_t magnitude(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFFu;
  // A mask instead of a conditional, which compilers turn into a branch.
  return u & static_cast<std::uint32_t>((static_cast<std::int32_t>(u) - 0x7F800001) >> 31);
}
TESSERA_FN constexpr std::uint32_t larger(std::uint32_t a, std::uint32_t b) { return a > b ? a : b; }
TESSERA_FN inline float largest_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }

/// One row of a patch: values by column.
template <class Source>
struct SourceRow {
  const typename Source::Stored* first;
  TESSERA_FN float operator()(std::int64_t c) const { return Source::value(first[c]); }
};

/// The rows of a patch. Only owned elements may be accessed.
template <class Source>
struct SourcePatch {
  const typename Source::Stored* origin;
  std::int64_t width;
  TESSERA_FN SourcePatch(const Descriptor& d, const Patch& p)
      : origin(reinterpret_cast<const typename Source::Stored*>(d.values) + (p.member * d.stride - d.begin) +
               p.row * d.matrix.columns + p.column),
        width(d.matrix.columns) {}
  TESSERA_FN SourcePatch(const typename Source::Stored* first, std::int64_t row_length)
      : origin(first), width(row_length) {}
  TESSERA_FN SourceRow<Source> row(std::int64_t r) const { return {origin + r * width}; }
};

/// Index in the random stream of a patch row's first element.
TESSERA_FN inline std::uint64_t draw_index(const Descriptor& d, const Patch& p, std::int64_t r) {
  const std::int64_t local = p.member * d.matrix.rows + p.row + r;
  const std::int64_t row = d.rows ? d.rows[local] : d.first_row + local;
  return static_cast<std::uint64_t>(row * d.matrix.columns + p.column);
}

/// Signs of the random Hadamard rotation: -1 where bit i, lowest first, is set.
inline constexpr std::uint32_t hadamard_signs = 0xD7E8;
inline constexpr int hadamard_block = 16;

}  // namespace tessera::quantizer
