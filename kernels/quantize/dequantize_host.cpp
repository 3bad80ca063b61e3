#include "kernels/base/launch.hpp"
#include "kernels/quantize/host_dequantize.hpp"

namespace tessera::quantizer {
namespace {

template <Side side, Decoding how, class T>
void decode_as(Stream& stream, FormatId format, const TableView& table) {
  visit_format(format, [&]<class F>() {
    launch(stream, "dequantize", table.all.count, [=](std::int64_t unit) {
      const Descriptor& d = table[table.all[unit]];
      if (d.side[static_cast<int>(side)].data) host::decode_patch<F, side, how, T>(d, patch_of(d, table.all[unit]));
    });
  });
}
template <Decoding how, class T>
void decode_side(Stream& stream, FormatId format, const TableView& table, Side side) {
  if (side == Side::rowwise) return decode_as<Side::rowwise, how, T>(stream, format, table);
  decode_as<Side::columnwise, how, T>(stream, format, table);
}

}  // namespace

void decode_factors_apart(Stream& stream, FormatId format, const TableView& table, const Apart& copies, Side side) {
  visit_format(format, [&]<class F>() {
    launch(stream, "dequantize", table.all.count, [=, &copies](std::int64_t unit) {
      const Task task = table.all[unit];
      const Descriptor d = member_apart(table.one, copies, side, task);  // mutation: codes_of_the_first_member
      const Patch p = patch_of(d, {0, 0, task.row, task.column});
      if (side == Side::rowwise) return host::decode_patch<F, Side::rowwise, Decoding::factor, bf16>(d, p);
      host::decode_patch<F, Side::columnwise, Decoding::factor, bf16>(d, p);
    });
  });
}

void decode(Stream& stream, FormatId format, const TableView& table, DType values, Side side, Decoding how) {
  const bool narrow = values == DType::bf16;
  if (how == Decoding::tensor)
    return narrow ? decode_side<Decoding::tensor, bf16>(stream, format, table, side)
                  : decode_side<Decoding::tensor, float>(stream, format, table, side);
  decode_side<Decoding::factor, bf16>(stream, format, table, side);
}

}  // namespace tessera::quantizer
