#include "kernels/quantize/back.hpp"

namespace tessera::quantizer {
namespace {

/// A place for the codes of one copy, in a workspace of the stream.
template <formats::Format F>
Copy codes_of(Stream& stream, const char* data, const char* scales, Side side, const QuantizedMatrix& m,
              const Tensor& amax) {
  const auto place = [&](const char* purpose, DType type, const Shape& one) {
    const Shape all{m.members * one[0], one[1]};
    return Tensor{stream.workspace(purpose, all.elements() * size_of(type)), type, all};
  };
  Copy copy;
  copy.data = place(data, dtype_of<typename F::Element::Storage>, formats::data_shape<F>(side, m.matrix));
  copy.scales = place(scales, dtype_of<typename F::Scale>, formats::scale_shape<F>(side, m.matrix));
  copy.amax = amax;
  return copy;
}

}  // namespace

// In two passes, by way of codes in a workspace. One pass that decodes a patch while it is in the caches would gain
// too little.
void make_factors(Stream& stream, FormatId format, const QuantizedMatrix& matrix, Purpose purpose) {
  view_of_one(stream, format, matrix, Contents::factors);  // checks
  QuantizedMatrix coded = matrix;
  visit_format(format, [&]<class F>() {
    if (matrix.rowwise.data)
      coded.rowwise =
          codes_of<F>(stream, "codes of rows", "scales of rows", Side::rowwise, matrix, matrix.rowwise.amax);
    if (matrix.columnwise.data)
      coded.columnwise = codes_of<F>(stream, "codes of columns", "scales of columns", Side::columnwise, matrix,
                                     matrix.columnwise.amax);
  });
  const TableView view = view_of_one(stream, format, coded);
  find_amax(stream, format, view, Reading::bf16, purpose);
  make_copies(stream, format, view, Reading::bf16, purpose);
  for (const Side side : {Side::rowwise, Side::columnwise}) {
    const Copy& factors = side == Side::rowwise ? matrix.rowwise : matrix.columnwise;
    if (!factors.data) continue;
    QuantizedMatrix decoded = coded;
    decoded.values.data = factors.data.data;
    decode(stream, format, view_of_one(stream, format, decoded), DType::bf16, side, Decoding::factor);
  }
}

}  // namespace tessera::quantizer
