#pragma once
#include "kernels/base/stream.hpp"
#include "kernels/quantize/table.hpp"

/// Quantization, to the bit of kernels/formats, of all matrices of a table in one launch; equal bits on every back end.
/// Nothing allocates. Copies are made where the table names their buffers. All throw Error{internal} on a table that
/// does not suit and order on `stream`. Local.
namespace tessera {

/// Whether fp32 values are rounded to bf16 before they are quantized (every weight), or taken as given.
enum class Precision : std::uint8_t { bf16_first, as_given };

/// The role of the values. A format with a Hadamard rotation rotates the columnwise copies of activations and of
/// gradients, and rounds both copies of gradients stochastically.
enum class Purpose : std::uint8_t { weight, activation, gradient };

/// Launches of quantizers on a stream so far (state of a stream, Stream::library), by what was quantized. Columnwise
/// copies derived from rowwise ones count as weights.
struct QuantizeLaunches {
  std::int64_t weights = 0, activations = 0, gradients = 0;
};

/// values -> data and scales of both copies, padding zeroed; amax where the format has one (two small launches more,
/// and one for scales that repeat). What is owned must consist of whole rows of blocks. With `block_scales`, scales go
/// there instead of into the arrays.
void quantize(Stream& stream, const QuantizeTable& table, Precision precision = Precision::bf16_first,
              Purpose purpose = Purpose::weight);

/// Its two halves: the amax of every member, as each copy sees the values, for formats that have one; then the copies
/// from the amaxes that the table's buffers hold already (of a matrix that is quantized in parts, say).
void find_amax(Stream& stream, const QuantizeTable& table, Precision precision = Precision::bf16_first,
               Purpose purpose = Purpose::weight);
void quantize_with_amax(Stream& stream, const QuantizeTable& table, Precision precision = Precision::bf16_first,
                        Purpose purpose = Purpose::weight);

/// One copy -> values [rows, columns], or [columns, rows] where the copy is stored transposed; bf16 results are rounded
/// to nearest even. Rotated copies stay rotated.
void dequantize(Stream& stream, const QuantizeTable& table, Side side);
/// One copy -> bf16 values [rows, columns] as products take them, however the copy is stored, without the tensor's
/// scale, which belongs into a product's alpha: exact but for extreme scales.
void decode_factors(Stream& stream, const QuantizeTable& table, Side side);

/// quantize() and decode_factors() of one matrix, all of it, bf16, whose description travels with the launch: nothing
/// is uploaded, so a captured launch needs no memory but its factors'.
void quantize_one(Stream& stream, FormatId format, const QuantizedMatrix& matrix, Purpose purpose);
void decode_one(Stream& stream, FormatId format, const QuantizedMatrix& matrix, Side side);

/// gelu(pre + bias), tanh form, and its gradient dy gelu'(pre + bias); bias [F] is empty where there is none. The
/// quantizer computes them itself, so that neither is ever stored.
struct Gelu {
  Tensor pre;  ///< [M,F]
  Tensor bias = {};
};
struct GeluGradient {
  Tensor dy, pre;  ///< [M,F]
  Tensor bias = {};
};
/// Whether a format's quantizer does.
bool fuses_gelu(FormatId format);
/// quantize_one() of these values, computed in fp32 and rounded to bf16 (`matrix` names none). `sums` (f32
/// gelu_gradient_sums(), or empty) become the column sums of each 128 rows of the gradient: by sixteens, in order.
void quantize_one(Stream& stream, FormatId format, QuantizedMatrix matrix, const Gelu& x);
void quantize_one(Stream& stream, FormatId format, QuantizedMatrix matrix, const GeluGradient& dx, const Tensor& sums);
constexpr Shape gelu_gradient_sums(formats::Matrix m) {
  return {(m.rows + quantizer::patch_edge - 1) / quantizer::patch_edge, m.columns};
}

/// decode_one() of `copies` that lie apart, at most decoded_at_once: each is a member of `matrix`, whose values they
/// fill.
void decode_apart(Stream& stream, FormatId format, const QuantizedMatrix& matrix, std::span<const Copy> copies,
                  Side side);
inline constexpr int decoded_at_once = quantizer::Apart::most;

/// Shards, first step: amaxes (bf16 [table.amax_entries()]) = the largest magnitude of bf16(values) in every block,
/// over the owned elements alone, and 0 where none is owned; then of every member. A maximum over ranks completes both.
void block_amax(Stream& stream, const QuantizeTable& table, const Tensor& amaxes);
/// Second step, from complete amaxes: data of exactly the owned elements, never a byte or nibble outside; all rowwise
/// scales with padding (columnwise ones too where the data serves both sides) and amax of the whole matrices, or, with
/// `block_scales`, the scales of the blocks whose first row is owned. The format bf16 takes no amaxes.
void partial_cast(Stream& stream, const QuantizeTable& table, const Tensor& amaxes);
/// Last step, from the gathered rowwise copy: columnwise data and scales. With `block_scales`, the rowwise array too.
void build_columnwise(Stream& stream, const QuantizeTable& table);

/// scales -> swizzled, for each copy that has both.
void swizzle_scales(Stream& stream, const QuantizeTable& table);

}  // namespace tessera
