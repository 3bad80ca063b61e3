#include "kernels/quantize/described_back.hpp"

namespace tessera::quantizer {
namespace {

/// A place for the codes of one copy, in a workspace of the stream.
Copy codes_of(Stream& stream, const FormatTraits& format, Side side, const QuantizedMatrix& m, const Tensor& amax) {
  const bool rows = side == Side::rowwise;
  const auto place = [&](const char* purpose, DType type, const Shape& one) {
    const Shape all{m.members * one[0], one[1]};
    return Tensor{stream.workspace(purpose, all.elements() * size_of(type)), type, all};
  };
  Copy copy;
  copy.data = place(rows ? "codes of rows" : "codes of columns", format.data_type, format.data_shape(side, m.matrix));
  copy.scales =
      place(rows ? "scales of rows" : "scales of columns", format.scale_type, format.scale_shape(side, m.matrix));
  copy.amax = amax;
  return copy;
}

}  // namespace

void make_factors_by_codes(Stream& stream, FormatId format, const QuantizedMatrix& matrix, Purpose purpose) {
  view_of_one(stream, format, matrix, Contents::factors);  // checks
  const FormatTraits traits = traits_of(format);
  if (traits.columnwise == formats::Columnwise::shared && matrix.rowwise.data && matrix.columnwise.data) {
    for (const Side without : {Side::columnwise, Side::rowwise}) {  // factors are apart where codes are shared
      QuantizedMatrix one = matrix;
      (without == Side::rowwise ? one.rowwise : one.columnwise) = {};
      make_factors_by_codes(stream, format, one, purpose);
    }
    return;
  }
  QuantizedMatrix coded = matrix;
  if (matrix.rowwise.data) coded.rowwise = codes_of(stream, traits, Side::rowwise, matrix, matrix.rowwise.amax);
  if (matrix.columnwise.data)
    coded.columnwise = codes_of(stream, traits, Side::columnwise, matrix, matrix.columnwise.amax);
  const TableView view = view_of_one(stream, format, coded);
  find_amax_by(stream, format, view, Reading::bf16, purpose);
  make_copies_by(stream, format, view, Reading::bf16, purpose);
  for (const Side side : {Side::rowwise, Side::columnwise}) {
    const Copy& factors = side == Side::rowwise ? matrix.rowwise : matrix.columnwise;
    if (!factors.data) continue;
    QuantizedMatrix decoded = coded;
    decoded.values.data = factors.data.data;
    decode_by(stream, format, view_of_one(stream, format, decoded), DType::bf16, side, Decoding::factor);
  }
}

}  // namespace tessera::quantizer
