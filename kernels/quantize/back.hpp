#pragma once
#include "kernels/quantize/quantize.hpp"

/// What a back end implements behind the functions of quantize.hpp, which have checked the arguments: *_host.cpp one
/// vectorising host thread a patch, *_cuda.cu blocks of device threads.
namespace tessera::quantizer {

/// What the quantizers see of the values in memory. Gelus: only where fuses_gelu.
enum class Reading : std::uint8_t { bf16, master, fp32, gelu, gelu_gradient };

/// The purpose of decoding.
enum class Decoding : std::uint8_t {
  tensor,  ///< to be looked at: in the stored order, the scale of the whole tensor applied
  factor,  ///< to be multiplied: in the order of the matrix, that scale left out
};

void find_amax(Stream& stream, FormatId format, const TableView& table, Reading reading, Purpose purpose);
void make_copies(Stream& stream, FormatId format, const TableView& table, Reading reading, Purpose purpose);
void decode(Stream& stream, FormatId format, const TableView& table, DType values, Side side, Decoding how);
/// Decodes to bf16 factors the matrices of view_of_apart().
void decode_factors_apart(Stream& stream, FormatId format, const TableView& table, const Apart& copies, Side side);

/// Where block_amax writes and partial_cast reads: entries of blocks, then of members.
struct Amaxes {
  std::uint16_t* blocks;
  std::int64_t block_entries, member_entries;
  TESSERA_FN std::uint16_t* members() const { return blocks + block_entries; }
};
void find_block_amaxes(Stream& stream, FormatId format, const TableView& table, Reading reading, const Amaxes& amaxes);
void cast_shards(Stream& stream, FormatId format, const TableView& table, Reading reading, const Amaxes& amaxes);
void derive_columnwise(Stream& stream, FormatId format, const TableView& table);
void swizzle(Stream& stream, FormatId format, const TableView& table);

}  // namespace tessera::quantizer
