#include "kernels/base/launch.hpp"
#include "kernels/quantize/host_dequantize.hpp"

namespace tessera::quantizer {
namespace {

template <Side side, TensorPart part, class T>
void decode_as(Stream& stream, FormatId format, const TableView& table) {
  visit_format(format, [&]<class F>() {
    launch(stream, "dequantize", table.all_units, [=](std::int64_t unit) {
      const Descriptor& d = table.items[table.all[unit].entry];
      if (d.side[static_cast<int>(side)].data) host::decode_patch<F, side, part, T>(d, patch_of(d, table.all[unit]));
    });
  });
}
template <TensorPart part, class T>
void decode_side(Stream& stream, FormatId format, const TableView& table, Side side) {
  if (side == Side::rowwise) return decode_as<Side::rowwise, part, T>(stream, format, table);
  decode_as<Side::columnwise, part, T>(stream, format, table);
}

}  // namespace

void decode(Stream& stream, FormatId format, const TableView& table, DType values, Side side, TensorPart part) {
  const bool narrow = values == DType::bf16;
  if (part == TensorPart::applied)
    return narrow ? decode_side<TensorPart::applied, bf16>(stream, format, table, side)
                  : decode_side<TensorPart::applied, float>(stream, format, table, side);
  narrow ? decode_side<TensorPart::left_out, bf16>(stream, format, table, side)
         : decode_side<TensorPart::left_out, float>(stream, format, table, side);
}

}  // namespace tessera::quantizer
