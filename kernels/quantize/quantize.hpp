#pragma once
#include "kernels/base/stream.hpp"
#include "kernels/quantize/table.hpp"

/// Quantization of all matrices of a table in one launch, with the bits that kernels/formats defines on every back end.
/// Makes the copies for which the table has buffers. All functions order on `stream`, allocate nothing, and throw
/// Error{internal} if the table does not suit. Local.
namespace tessera {

/// Whether fp32 values are rounded to bf16 before they are quantized (every weight), or taken as given.
enum class Precision : std::uint8_t { bf16_first, as_given };

/// The role of the values, and what is done to them in formats that take it (Format::hadamard). The columnwise copy is
/// rotated (Hadamard), both copies are rounded stochastically. The constants are what recipes of such formats do.
struct Purpose {
  enum class Role : std::uint8_t { weight, activation, gradient };
  Role role;
  bool rotates = false, draws = false;

  static const Purpose weight, activation, gradient;
  bool operator==(const Purpose&) const = default;
};
inline constexpr Purpose Purpose::weight{Role::weight};
inline constexpr Purpose Purpose::activation{Role::activation, true};
inline constexpr Purpose Purpose::gradient{Role::gradient, true, true};

/// Launches of quantizers on a stream so far (state of a stream, Stream::library), by what was quantized. Columnwise
/// copies derived from rowwise ones count as weights.
struct QuantizeLaunches {
  std::int64_t weights = 0, activations = 0, gradients = 0;
};

/// Quantizes: values -> data and scales of both copies, padding zeroed, and amax if the format has one. (Two small
/// launches more, and one for scales that repeat.) Owned elements must be whole rows of blocks. With `block_scales`,
/// scales are written there instead of into the copies' arrays.
void quantize(Stream& stream, const QuantizeTable& table, Precision precision = Precision::bf16_first,
              Purpose purpose = Purpose::weight);

/// The two halves of quantize(). find_amax: the amax of every member, of the values as each copy quantizes them, for
/// formats that have one. quantize_with_amax: the copies, from amaxes that are in the table's buffers already, for
/// example of a matrix that is quantized in parts.
void find_amax(Stream& stream, const QuantizeTable& table, Precision precision = Precision::bf16_first,
               Purpose purpose = Purpose::weight);
void quantize_with_amax(Stream& stream, const QuantizeTable& table, Precision precision = Precision::bf16_first,
                        Purpose purpose = Purpose::weight);

/// Dequantizes one copy: values [rows, columns], or [columns, rows] if the copy is stored transposed; bf16 results are
/// rounded to nearest even. A Hadamard rotation is not undone.
void dequantize(Stream& stream, const QuantizeTable& table, Side side);
/// Decodes one copy to factors of products: bf16 values [rows, columns] whatever order the copy is stored in. They are
/// without the tensor's scale, which becomes a product's alpha. Exact except for extreme scales.
void decode_factors(Stream& stream, const QuantizeTable& table, Side side);

/// quantize() and decode_factors() of one whole bf16 matrix, whose description is passed with the launch. Nothing is
/// uploaded, so that a captured launch needs no memory besides its factors.
void quantize_one(Stream& stream, FormatId format, const QuantizedMatrix& matrix, Purpose purpose);
void decode_one(Stream& stream, FormatId format, const QuantizedMatrix& matrix, Side side);
/// Fake quantization (quantize-dequantize) in one launch: the bits of quantize_one() and decode_one(), without codes in
/// memory. Each copy's data are bf16 factors of the matrix's shape, with an amax if the format has one, and no scales.
/// For formats whose blocks run along one dimension, or that have a tensor's scale alone.
void make_factors(Stream& stream, FormatId format, const QuantizedMatrix& matrix, Purpose purpose);

/// Activations and their gradients. Products of codes read them through quantizers only, which compute them from their
/// inputs, so that neither is stored. gelu(pre), tanh form, and dy gelu'(pre):
struct Gelu {
  Tensor pre;  ///< bf16 [M,F]
};
struct GeluGradient {
  Tensor dy, pre;  ///< bf16 [M,F]
};
/// silu(gate) up, and the gradient of both [M,2F].
struct Swiglu {
  Tensor gate_up;  ///< bf16 [M,2F], gate first
};
struct SwigluGradient {
  Tensor dy, gate_up;  ///< bf16 [M,F], [M,2F]
};
/// Whether a format's quantizer computes activations and column sums on the way: gelus of any width F, and swiglus of
/// those of fits_swiglu().
bool quantizes_in_one_pass(FormatId format);
constexpr bool fits_swiglu(std::int64_t width) { return width % quantizer::patch_edge == 0; }
/// quantize_one() of these values, computed in fp32 and rounded to bf16; `matrix` names none.
void quantize_one(Stream& stream, FormatId format, QuantizedMatrix matrix, const Gelu& x);
void quantize_one(Stream& stream, FormatId format, QuantizedMatrix matrix, const GeluGradient& dx);
void quantize_one(Stream& stream, FormatId format, QuantizedMatrix matrix, const Swiglu& x);
void quantize_one(Stream& stream, FormatId format, QuantizedMatrix matrix, const SwigluGradient& dx);
/// Shape of QuantizedMatrix::column_sums.
constexpr Shape column_sums_shape(formats::Matrix m) {
  return {(m.rows + quantizer::patch_edge - 1) / quantizer::patch_edge, m.columns};
}

/// decode_one() of at most decoded_at_once `copies` in separate memory: copy i is member i of `matrix`, to whose values
/// it is decoded.
void decode_apart(Stream& stream, FormatId format, const QuantizedMatrix& matrix, std::span<const Copy> copies,
                  Side side);
inline constexpr int decoded_at_once = quantizer::Apart::most;

/// Sharded quantization, step 1: amaxes (bf16 [table.amax_entries()]) = the largest magnitude of bf16(values) in every
/// block, then in every member, over owned elements only. It is 0 if none is owned. A maximum over ranks completes
/// them.
void block_amax(Stream& stream, const QuantizeTable& table, const Tensor& amaxes);
/// Step 2, from complete amaxes: data of exactly the owned elements, without touching a byte or nibble outside. Writes
/// all rowwise scales with padding (columnwise ones too if the data serve both sides) and amax of the whole matrices.
/// Or, with `block_scales`, it writes the scales of the blocks whose first row is owned. Format bf16 needs no amaxes.
/// Formats that choose between encodings (formats::chooses) take whole rows of blocks, and the whole or `block_scales`.
/// They write the owned columnwise data too.
void partial_cast(Stream& stream, const QuantizeTable& table, const Tensor& amaxes);
/// Step 3, from the gathered rowwise copy: columnwise data and scales. With `block_scales`, also the rowwise scales.
void build_columnwise(Stream& stream, const QuantizeTable& table);

/// Writes Copy::swizzled from Copy::scales, for each copy that has both. swizzle_one(): of one whole matrix, whose
/// description is passed with the launch; its values are not read.
void swizzle_scales(Stream& stream, const QuantizeTable& table);
void swizzle_one(Stream& stream, FormatId format, const QuantizedMatrix& matrix);

}  // namespace tessera
