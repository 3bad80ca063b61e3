#pragma once
#include "kernels/quantize/quantize.hpp"
#include "kernels/quantize/source.hpp"

/// The back ends of quantize.hpp, whose functions have checked the arguments. Those in *_host.cpp give each patch to
/// one host thread that vectorises, those in *_cuda.cu give patches to blocks of device threads.
namespace tessera::quantizer {

/// How the quantizers read the values in memory: stored bf16; fp32 masters, rounded to bf16 when they are read; fp32
/// without rounding. For formats of one_pass() only, stored bf16 with column sums, or an activation or its gradient
/// (with column sums if wanted), computed from stored bf16.
enum class Reading : std::uint8_t { bf16, master, fp32, summed, gelu, gelu_gradient, swiglu, swiglu_gradient };

/// Calls work.template operator()<F, M>() with the mode M of a reading and a purpose.
template <formats::Format F, class Work>
void with_reading(Reading reading, const Purpose& purpose, const Work& work) {
  const auto of_format = [&]<class M>() { work.template operator()<F, M>(); };
  if (reading == Reading::bf16) return with_purpose<F, FromBf16>(purpose, of_format);
  if (reading == Reading::master) return with_purpose<F, FromMaster>(purpose, of_format);
  if constexpr (one_pass<F>) {
    if (reading == Reading::summed) return with_purpose<F, FromSummed>(purpose, of_format);
    if (reading == Reading::gelu) return with_purpose<F, FromGelu>(purpose, of_format);
    if (reading == Reading::gelu_gradient) return with_purpose<F, FromGeluGradient>(purpose, of_format);
    if (reading == Reading::swiglu) return with_purpose<F, FromSwiglu>(purpose, of_format);
    if (reading == Reading::swiglu_gradient) return with_purpose<F, FromSwigluGradient>(purpose, of_format);
  }
  with_purpose<F, FromFp32>(purpose, of_format);
}

/// The purpose of decoding.
enum class Decoding : std::uint8_t {
  tensor,  ///< values for the caller: in the stored order, the scale of the whole tensor applied
  factor,  ///< factor of a matrix product: in the order of the matrix, without the scale of the whole tensor
};

/// Sets the amaxes of all lines to 0, where copies have some (formats::by_lines).
void clear_lines(Stream& stream, const TableView& table);
void find_amax(Stream& stream, FormatId format, const TableView& table, Reading reading, Purpose purpose);
void make_copies(Stream& stream, FormatId format, const TableView& table, Reading reading, Purpose purpose);
void decode(Stream& stream, FormatId format, const TableView& table, DType values, Side side, Decoding how);
/// make_factors() of quantize.hpp, for formats of has_factors().
void make_factors(Stream& stream, FormatId format, const QuantizedMatrix& matrix, Purpose purpose);
template <formats::Format F>
inline constexpr bool has_factors_of = F::scaled ? F::block.rows != F::block.columns : F::tensor_amax;
inline bool has_factors(FormatId format) {
  if (formats::is_described(format)) return true;
  return visit_format(format, []<class F>() { return has_factors_of<F>; });
}
/// Decodes the matrices of view_of_apart() to bf16 factors.
void decode_factors_apart(Stream& stream, FormatId format, const TableView& table, const Apart& copies, Side side);

/// The amaxes that block_amax() writes and partial_cast() reads: one entry a block, then one a member (bits of bf16).
struct Amaxes {
  std::uint16_t* blocks;
  std::int64_t block_entries, member_entries;
  TESSERA_FN std::uint16_t* members() const { return blocks + block_entries; }
};
void find_block_amaxes(Stream& stream, FormatId format, const TableView& table, Reading reading, const Amaxes& amaxes);
/// For formats that do not choose between encodings: those quantize what is owned.
void cast_shards(Stream& stream, FormatId format, const TableView& table, Reading reading, const Amaxes& amaxes);
void derive_columnwise(Stream& stream, FormatId format, const TableView& table);
void swizzle(Stream& stream, FormatId format, const TableView& table);

}  // namespace tessera::quantizer
