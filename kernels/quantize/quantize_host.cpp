#include "kernels/base/launch.hpp"
#include "kernels/quantize/back.hpp"
#include "kernels/quantize/host_quantize.hpp"

namespace tessera::quantizer {
namespace {

using formats::Format;

/// Calls f(unit, entry, patch) for every patch that holds an owned element.
template <class F>
void each_owned_patch(Stream& stream, const char* name, const TableView& table, const F& f) {
  launch(stream, name, table.owned.count, [=](std::int64_t unit) {
    const Descriptor& d = table[table.owned[unit]];
    f(unit, d, patch_of(d, table.owned[unit]));
  });
}

/// Calls work.template operator()<F, M>() for the format and mode at hand.
template <class Work>
void with_mode(FormatId format, Reading reading, Purpose purpose, const Work& work) {
  visit_format(format, [&]<class F>() { with_reading<F>(reading, purpose, work); });
}

}  // namespace

void find_amax(Stream& stream, FormatId format, const TableView& table, Reading reading, Purpose purpose) {
  with_mode(format, reading, purpose, [&]<class F, class M>() {
    if constexpr (formats::by_lines<F>) {
      clear_lines(stream, table);  // mutation: amaxes_of_the_step_before
      each_owned_patch(stream, "quantize: amax of lines", table, [](std::int64_t, const Descriptor& d, const Patch& p) {
        host::raise_lines<F, M>(d, p);
      });
    } else if constexpr (F::tensor_amax) {
      constexpr bool rotated = F::hadamard && M::rotates;  // otherwise both copies see equal values
      each_owned_patch(
          stream, "quantize: largest of patches", table, [=](std::int64_t unit, const Descriptor& d, const Patch& p) {
            table.largest[0][unit] = host::largest<F, M>(d, p, Side::rowwise);
            // The Hadamard rotation reads whole blocks of sixteen rows: only a columnwise copy requires them.
            const bool apart = rotated && d.side[1].amax != nullptr;
            table.largest[1][unit] = apart ? host::largest<F, M>(d, p, Side::columnwise) : table.largest[0][unit];
          });
      launch(stream, "quantize: amax of members", table.members.count, [=](std::int64_t unit) {
        const Task& task = table.members[unit];
        const Descriptor& d = table[task];
        for (int s = 0; s < 2; ++s)
          if (d.side[s].amax) d.side[s].amax[task.member] = host::largest_of_member(d, task.member, table.largest[s]);
      });
    }
  });
}

void make_copies(Stream& stream, FormatId format, const TableView& table, Reading reading, Purpose purpose) {
  with_mode(format, reading, purpose, [&]<class F, class M>() {
    each_owned_patch(stream, "quantize", table,
                     [](std::int64_t, const Descriptor& d, const Patch& p) { host::quantize_patch<F, M>(d, p); });
  });
}

}  // namespace tessera::quantizer
