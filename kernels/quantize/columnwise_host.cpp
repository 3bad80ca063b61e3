#include "kernels/base/launch.hpp"
#include "kernels/quantize/back.hpp"
#include "kernels/quantize/host_columnwise.hpp"

namespace tessera::quantizer {
namespace {

using formats::Format;

/// Calls f(entry, patch) for every patch of the table.
template <class F>
void each_patch(Stream& stream, const char* name, const TableView& table, const F& f) {
  launch(stream, name, table.all.count, [=](std::int64_t unit) {
    const Descriptor& d = table[table.all[unit]];
    f(d, patch_of(d, table.all[unit]));
  });
}

}  // namespace

void derive_columnwise(Stream& stream, FormatId format, const TableView& table) {
  visit_format(format, [&]<class F>() {
    if constexpr (!formats::is_plain<F> && F::columnwise != formats::Columnwise::requantized)
      each_patch(stream, "build_columnwise", table, [](const Descriptor& d, const Patch& p) {
        host::build_columnwise<F>(d, p);
        if (F::tensor_amax && p.row == 0 && p.column == 0 && d.side[1].amax && d.side[1].amax != d.side[0].amax)
          d.side[1].amax[p.member] = d.side[0].amax[p.member];
      });
  });
}

void swizzle(Stream& stream, FormatId format, const TableView& table) {
  visit_format(format, [&]<class F>() {
    if constexpr (formats::swizzles<F>())
      each_patch(stream, "swizzle_scales", table, [](const Descriptor& d, const Patch& p) {
        host::swizzle_patch<F>(Side::rowwise, d, p);
        host::swizzle_patch<F>(Side::columnwise, d, p);
      });
  });
}

}  // namespace tessera::quantizer
