#pragma once
#include "kernels/quantize/back.hpp"
#include "kernels/quantize/source.hpp"

/// Kernels of described formats: one for all, with the description as an argument. Like the functions of the same names
/// in back.hpp; both back ends work on patches of 128 x 128 elements and share what is below.
namespace tessera::quantizer::described {

using formats::Block;
using formats::Described;
using formats::TensorScale;

void find_amax(Stream& stream, const Described& format, const TableView& table, Reading reading);
void make_copies(Stream& stream, const Described& format, const TableView& table, Reading reading);
void decode(Stream& stream, const Described& format, const TableView& table, DType values, Side side, Decoding how);
void decode_factors_apart(Stream& stream, const Described& format, const TableView& table, const Apart& copies,
                          Side side);
void find_block_amaxes(Stream& stream, const Described& format, const TableView& table, Reading reading,
                       const Amaxes& amaxes);
void cast_shards(Stream& stream, const Described& format, const TableView& table, Reading reading,
                 const Amaxes& amaxes);
void derive_columnwise(Stream& stream, const Described& format, const TableView& table);

/// Blocks of a patch of one side; their edges are powers of two, and a patch holds whole blocks.
struct Blocks {
  static constexpr int most = patch_edge * patch_edge / 16;
  int row_shift, column_shift;  ///< log2 of a block's edges
  int across, count;            ///< of a patch
  std::int64_t first_row, first_column;  ///< of the patch among the matrix's blocks
  Matrix all;                   ///< the matrix's blocks

  TESSERA_FN Blocks(const Described& format, Side side, const Descriptor& d, const Patch& p) {
    const formats::Geometry geometry = format.geometry();
    const Block block = geometry.block_of(side);
    row_shift = shift_of(block.rows);
    column_shift = shift_of(block.columns);
    across = patch_edge >> column_shift;
    count = across * (patch_edge >> row_shift);
    first_row = p.row >> row_shift;
    first_column = p.column >> column_shift;
    all = geometry.blocks(side, d.matrix);
  }
  TESSERA_FN int of(int row, int column) const { return (row >> row_shift) * across + (column >> column_shift); }
  /// Index of a patch's block among those of all members, -1 outside of the matrix.
  TESSERA_FN std::int64_t place(std::int64_t member, int block) const {
    const std::int64_t i = first_row + block / across, j = first_column + block % across;
    return i < all.rows && j < all.columns ? member * all.elements() + i * all.columns + j : -1;
  }
  /// Whether all rows of a patch's block that the matrix has are owned.
  TESSERA_FN bool owned(const Descriptor& d, const Patch& p, int block) const {
    const std::int64_t first = block / across << row_shift, wanted = first + (std::int64_t{1} << row_shift),
                       end = wanted < p.rows ? wanted : p.rows;
    return (p.row + first) * d.matrix.columns >= p.low && (p.row + end) * d.matrix.columns <= p.high;
  }

 private:
  TESSERA_FN static int shift_of(int edge) {
    int shift = 0;
    while (1 << shift < edge) ++shift;
    return shift;
  }
};

/// The value at position `at` of the table entry, as it is read.
TESSERA_FN inline float value_at(const Descriptor& d, Reading reading, std::int64_t at) {
  if (reading == Reading::bf16) return FromBf16::value(reinterpret_cast<const std::uint16_t*>(d.values)[at - d.begin]);
  const float x = reinterpret_cast<const float*>(d.values)[at - d.begin];
  return reading == Reading::master ? FromMaster::value(x) : x;
}
/// The position of a patch's element.
TESSERA_FN inline std::int64_t position_of(const Descriptor& d, const Patch& p, int row, int column) {
  return p.member * d.stride + (p.row + row) * d.matrix.columns + p.column + column;
}
TESSERA_FN inline bool owns(const Descriptor& d, const Patch& p, int row, int column) {
  return column >= p.first_owned(row, d.matrix.columns) && column < p.end_owned(row, d.matrix.columns);
}

/// A scale in its array; null: there is none.
TESSERA_FN inline void store_scale(const Described& format, void* scales, std::int64_t i, Described::Scale scale) {
  if (scales == nullptr) return;
  if (format.geometry().scale_bytes == 4)
    static_cast<std::uint32_t*>(scales)[i] = scale;
  else
    static_cast<std::uint8_t*>(scales)[i] = static_cast<std::uint8_t>(scale);
}
TESSERA_FN inline Described::Scale load_scale(const Described& format, const void* scales, std::int64_t i) {
  if (format.geometry().scale_bytes == 4) return static_cast<const std::uint32_t*>(scales)[i];
  return static_cast<const std::uint8_t*>(scales)[i];
}
/// The scale of a block whose copies share it: in both arrays, or in the one that travels.
TESSERA_FN inline void store_shared_scale(const Described& format, const Descriptor& d, std::int64_t i,
                                          Described::Scale scale) {
  if (d.block_scales != nullptr) return store_scale(format, d.block_scales, i, scale);
  store_scale(format, d.side[0].scales, i, scale);
  store_scale(format, d.side[1].scales, i, scale);
}

TESSERA_FN inline TensorScale tensor_scale_of(const Described& format, const Addresses& copy, std::int64_t member) {
  return copy.amax != nullptr ? format.tensor_scale(copy.amax[member]) : TensorScale{};
}
/// The member's scale from agreed amaxes; `keep`: stores the amax with the copies.
TESSERA_FN inline TensorScale agreed_scale_of(const Described& format, const Descriptor& d, const Patch& p,
                                              const Amaxes& amaxes, bool keep) {
  if (!format.tensor_amax()) return {};
  const float amax = FromBf16::value(amaxes.members()[d.first_member + p.member]);
  if (keep && p.row == 0 && p.column == 0)
    for (const Addresses& copy : d.side)
      if (copy.amax != nullptr) copy.amax[p.member] = amax;
  return format.tensor_scale(amax);
}
/// The encoding of a patch's block from agreed amaxes.
TESSERA_FN inline formats::Encoding<Described::Scale> agreed_encoding(const Described& format, const Descriptor& d,
                                                                      const Amaxes& amaxes, const TensorScale& tensor,
                                                                      std::int64_t place) {
  const float amax = format.scaled() && place >= 0 ? FromBf16::value(amaxes.blocks[d.first_block + place]) : 0.0f;
  return format.encoding(amax, tensor);
}

/// Whether a unit of cast_shards() writes scales, which all patches have, or data; and its task.
struct CastUnit {
  bool data;
  Task task;
  TESSERA_FN CastUnit(const TableView& table, std::int64_t unit)
      : data(unit >= table.all.count), task(data ? table.owned[unit - table.all.count] : table.all[unit]) {}
};

/// The scale of a block of a copy that shares its scales, from the array that travelled into both.
TESSERA_FN inline void expand_scale(const Described& format, const Descriptor& d, std::int64_t place) {
  const void* const from = d.block_scales != nullptr ? d.block_scales : d.side[0].scales;
  const Described::Scale scale = load_scale(format, from, place);
  if (d.block_scales != nullptr) store_scale(format, d.side[0].scales, place, scale);
  store_scale(format, d.side[1].scales, place, scale);
}

}  // namespace tessera::quantizer::described

namespace tessera::quantizer {

/// By the kernels of a format: its own, or those of all described ones.
inline void find_amax_by(Stream& stream, FormatId format, const TableView& table, Reading reading, Purpose purpose) {
  if (formats::is_described(format)) return described::find_amax(stream, formats::Described(format), table, reading);
  find_amax(stream, format, table, reading, purpose);
}
inline void make_copies_by(Stream& stream, FormatId format, const TableView& table, Reading reading, Purpose purpose) {
  if (formats::is_described(format)) return described::make_copies(stream, formats::Described(format), table, reading);
  make_copies(stream, format, table, reading, purpose);
}
inline void decode_by(Stream& stream, FormatId format, const TableView& table, DType values, Side side, Decoding how) {
  if (formats::is_described(format))
    return described::decode(stream, formats::Described(format), table, values, side, how);
  decode(stream, format, table, values, side, how);
}
/// make_factors() of any format in two passes, by way of codes in a workspace.
void make_factors_by_codes(Stream& stream, FormatId format, const QuantizedMatrix& matrix, Purpose purpose);

}  // namespace tessera::quantizer
