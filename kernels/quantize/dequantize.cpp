#include "kernels/quantize/dequantize.hpp"

#include "kernels/base/launch.hpp"

namespace tessera {
namespace quantizer {
namespace {

using formats::Format;

template <Format F, Side side, TensorPart part, class T, class Team>
TESSERA_FN void decode_unit(const Team& team, const TableView& table, std::int64_t unit) {
  const int item = table.all.owner(unit);
  const Descriptor& d = table.items[item];
  if (d.side[static_cast<int>(side)].data == nullptr) return;
  decode_patch<F, side, part, T>(team, d, patch_of(d, 0, unit - table.all.first[item]));
}

template <Format F, Side side, TensorPart part, class T>
void run_decode(Stream& stream, const TableView& table) {
  launch_rows(
      stream, "dequantize", table.all_units,
      KOKKOS_LAMBDA(const Row& row, std::int64_t unit) { decode_unit<F, side, part, T>(row, table, unit); });
}

template <TensorPart part>
void decode(Stream& stream, const QuantizeTable& table, Side side, const char* kernel) {
  require(table.whole(), kernel, "values hold every element");
  const TableView view = table.view();
  const bool narrow = table.values_type() == DType::bf16;
  visit_format(table.format(), [&]<class F>() {
    if (side == Side::rowwise)
      return narrow ? run_decode<F, Side::rowwise, part, bf16>(stream, view)
                    : run_decode<F, Side::rowwise, part, float>(stream, view);
    return narrow ? run_decode<F, Side::columnwise, part, bf16>(stream, view)
                  : run_decode<F, Side::columnwise, part, float>(stream, view);
  });
}

}  // namespace
}  // namespace quantizer

void dequantize(Stream& stream, const QuantizeTable& table, Side side) {
  quantizer::decode<quantizer::TensorPart::applied>(stream, table, side, "dequantize");
}
void decode_operands(Stream& stream, const QuantizeTable& table, Side side) {
  quantizer::decode<quantizer::TensorPart::left_out>(stream, table, side, "decode_operands");
}

}  // namespace tessera
