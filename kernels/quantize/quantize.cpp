#include "kernels/quantize/quantize.hpp"

#include "kernels/quantize/back.hpp"

namespace tessera {
namespace {

using quantizer::Amaxes;
using quantizer::Reading;

Reading reading_of(const QuantizeTable& table, Precision precision) {
  if (table.values_type() == DType::bf16) return Reading::bf16;
  return precision == Precision::bf16_first ? Reading::master : Reading::fp32;
}

void check_source(const QuantizeTable& table, Purpose purpose) {
  require(table.whole_block_rows(), "quantize", "what is owned must consist of whole rows of blocks");
  const bool rotates = visit_format(table.format(), [&]<class F>() { return F::hadamard; });
  if (!rotates || purpose == Purpose::weight) return;
  for (const quantizer::Descriptor& d : table.descriptors()) {
    require(d.step || purpose != Purpose::gradient, "quantize", "gradients that are rounded at random need a step");
    require(d.side[0].amax == nullptr || d.side[0].amax != d.side[1].amax, "quantize",
            "a rotated copy has an amax of its own");
  }
}

Amaxes amaxes_of(const QuantizeTable& table, const Tensor& amaxes, const char* kernel) {
  require(amaxes.elements() == table.amax_entries() && (amaxes.type == DType::bf16 || table.amax_entries() == 0),
          kernel, "amaxes are bf16 [table.amax_entries()]");
  return {static_cast<std::uint16_t*>(amaxes.data), table.block_entries(), table.member_entries()};
}

}  // namespace

void find_amax(Stream& stream, const QuantizeTable& table, Precision precision, Purpose purpose) {
  check_source(table, purpose);
  quantizer::find_amax(stream, table.format(), table.view(), reading_of(table, precision), purpose);
}

void quantize_with_amax(Stream& stream, const QuantizeTable& table, Precision precision, Purpose purpose) {
  check_source(table, purpose);
  quantizer::make_copies(stream, table.format(), table.view(), reading_of(table, precision), purpose);
}

void quantize(Stream& stream, const QuantizeTable& table, Precision precision, Purpose purpose) {
  find_amax(stream, table, precision, purpose);
  quantize_with_amax(stream, table, precision, purpose);
}

void dequantize(Stream& stream, const QuantizeTable& table, Side side) {
  require(table.whole(), "dequantize", "values hold every element");
  quantizer::decode(stream, table.format(), table.view(), table.values_type(), side, quantizer::TensorPart::applied);
}

void decode_operands(Stream& stream, const QuantizeTable& table, Side side) {
  require(table.whole(), "decode_operands", "values hold every element");
  quantizer::decode(stream, table.format(), table.view(), table.values_type(), side, quantizer::TensorPart::left_out);
}

void block_amax(Stream& stream, const QuantizeTable& table, const Tensor& amaxes) {
  const Amaxes out = amaxes_of(table, amaxes, "block_amax");
  require(traits_of(table.format()).agreement != formats::Agreement::nothing, "block_amax",
          "ranks agree on nothing for this format");
  quantizer::find_block_amaxes(stream, table.format(), table.view(), reading_of(table, Precision::bf16_first), out);
}

void partial_cast(Stream& stream, const QuantizeTable& table, const Tensor& amaxes) {
  const Amaxes in = amaxes_of(table, amaxes, "partial_cast");
  const FormatTraits format = traits_of(table.format());
  require(!table.scales_travel() || table.whole_block_rows(), "partial_cast",
          "scales travel in whole rows of blocks only");
  require(!format.scaled || format.agreement != formats::Agreement::nothing, "partial_cast",
          "this format travels as bf16");
  quantizer::cast_shards(stream, table.format(), table.view(), reading_of(table, Precision::bf16_first), in);
}

void build_columnwise(Stream& stream, const QuantizeTable& table) {
  const FormatTraits format = traits_of(table.format());
  if (!format.scaled) return;
  require(format.columnwise != formats::Columnwise::requantized, "build_columnwise",
          "this format's columnwise copy needs the source");
  quantizer::derive_columnwise(stream, table.format(), table.view());
}

void swizzle_scales(Stream& stream, const QuantizeTable& table) {
  require(visit_format(table.format(), [&]<class F>() { return formats::swizzles<F>(); }), "swizzle_scales",
          "no block-scaled GEMM takes this format");
  quantizer::swizzle(stream, table.format(), table.view());
}

}  // namespace tessera
