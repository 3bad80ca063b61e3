#pragma once
#include <variant>

#include "kernels/quantize/quantize.hpp"
#include "kernels/reduce/reduce.hpp"

/// Statistics of quantizers: what becomes of the values that they read. Counts are integers and sums are exact. Those
/// of parts add up in any order to those of the whole, with the same bits on every back end. All functions order on
/// `stream`, allocate nothing, and throw Error{internal} if arguments do not suit. Local.
namespace tessera {

/// Statistics of one copy of a matrix, as 64-bit words. All add up, but for amax, whose largest counts.
struct QuantizerSums {
  std::uint64_t elements = 0, zeros = 0, nan = 0, infinite = 0;
  std::uint64_t saturated = 0;        ///< finite values at least half a step of the largest code above it, when scaled
  std::uint64_t underflow = 0;        ///< finite values other than 0 whose code is a zero
  std::uint64_t amax = 0;             ///< fp32 bits of the largest finite magnitude
  std::uint64_t exponents[256] = {};  ///< finite values other than 0 by their exponent field; 0: subnormal ones
  /// Sums of squares of finite values, and of their errors: each fp32(value - decoded value), or the largest fp32
  /// number where that is not finite. In ExactSum's digits, carried or not.
  std::uint64_t values[ExactSum::limbs] = {}, errors[ExactSum::limbs] = {};

  static constexpr std::int64_t words = 7 + 256 + 2 * ExactSum::limbs;
};
static_assert(sizeof(QuantizerSums) == QuantizerSums::words * sizeof(std::uint64_t));

/// What a quantizer reads: the values of its QuantizedMatrix (monostate), or what it computes on the way.
using QuantizerInput = std::variant<std::monostate, Gelu, GeluGradient, Swiglu, SwigluGradient>;

/// sums (u64 [QuantizerSums::words]) += the statistics of one copy of a whole bf16 matrix. quantize_one() or
/// make_factors() has quantized it with these arguments. Codes are made anew, from the same amaxes and random numbers.
/// Rows r with tokens[r] < 0 (i32 [rows]; empty: none) belong to no token and do not count. Where sixteen rows are
/// rotated together they count unless all sixteen are such rows.
void measure_copy(Stream& stream, FormatId format, const QuantizedMatrix& matrix, Purpose purpose, Side side,
                  const QuantizerInput& input, const Tensor& tokens, const Tensor& sums);

/// A part of a weight: of `members` matrices, one behind the other, the fp32 masters of positions [first, first + n).
struct MasterPart {
  formats::Matrix matrix;
  std::int64_t members = 1, first = 0;
  Tensor values;  ///< f32 [n]
};
/// A weight whose parts are measured apart, in this order: amaxes of blocks, maxima over all owners of parts, amaxes
/// of members, statistics. Before the last, formats that choose by errors take those of blocks, summed over all owners.
/// Number of amaxes: one for each block of one side, row-major, of each member.
std::int64_t block_tops(FormatId format, Side side, formats::Matrix matrix, std::int64_t members);
/// tops (bf16 [block_tops()]) = maximum with the magnitudes of bf16(values).
void raise_tops(Stream& stream, FormatId format, Side side, const MasterPart& part, const Tensor& tops);
/// amaxes (f32 [members]) = the largest of each member's blocks.
void amaxes_of_tops(Stream& stream, const Tensor& tops, const Tensor& amaxes);
/// Number of errors: two for each block, of formats that choose between encodings; 0 of others.
std::int64_t block_errors(FormatId format, Side side, formats::Matrix matrix, std::int64_t members);
/// errors (u64 [block_errors()]) += those of bf16(values) under both encodings; nothing where there are none.
void add_errors(Stream& stream, FormatId format, Side side, const MasterPart& part, const Tensor& tops,
                const Tensor& amaxes, const Tensor& errors);
/// sums += the statistics of the part's values as a weight.
void measure_part(Stream& stream, FormatId format, Side side, const MasterPart& part, const Tensor& tops,
                  const Tensor& amaxes, const Tensor& errors, const Tensor& sums);

}  // namespace tessera
