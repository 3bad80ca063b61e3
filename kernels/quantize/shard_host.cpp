#include "kernels/base/launch.hpp"
#include "kernels/quantize/back.hpp"
#include "kernels/quantize/host_shard.hpp"

namespace tessera::quantizer {
namespace {

using formats::Format;
using formats::TensorScale;

/// Entries of the amax buffer that one work item clears.
constexpr std::int64_t chunk = 4096;

template <class Work>
void with_source(Reading reading, const Work& work) {
  if (reading == Reading::bf16) return work.template operator()<FromBf16>();
  work.template operator()<FromMaster>();  // mutation: owner_quantizes_fp32
}

template <Format F, class Source>
void find_amaxes(Stream& stream, const TableView& table, const Amaxes& amaxes) {
  const std::int64_t n = amaxes.block_entries + amaxes.member_entries;
  launch(stream, "block_amax: clear", ceil_div(n, chunk), [=](std::int64_t i) {
    std::fill(amaxes.blocks + i * chunk, amaxes.blocks + (n - i * chunk < chunk ? n : (i + 1) * chunk),
              std::uint16_t{0});
  });
  launch(stream, "block_amax", table.owned.count, [=](std::int64_t unit) {
    const Descriptor& d = table[table.owned[unit]];
    table.largest[0][unit] = host::tile_amaxes<F, Source>(d, patch_of(d, table.owned[unit]), amaxes.blocks);
  });
  if constexpr (F::tensor_amax)
    launch(stream, "block_amax: members", table.members.count, [=](std::int64_t unit) {
      const Task& task = table.members[unit];
      const Descriptor& d = table[task];
      const float top = host::largest_of_member(d, task.member, table.largest[0]);
      amaxes.members()[d.first_member + task.member] = bf16(top).bits;
    });
}

/// The member's scale, computed from its amax. The first patch of a member stores the amax with the copies.
template <Format F>
TensorScale tensor_of(const Descriptor& d, const Patch& p, const Amaxes& amaxes, bool keep) {
  if constexpr (F::tensor_amax) {
    const float amax = FromBf16::value(amaxes.members()[d.first_member + p.member]);
    if (keep && p.row == 0 && p.column == 0)
      for (const Addresses& copy : d.side)
        if (copy.amax) copy.amax[p.member] = amax;
    return F::tensor_scale(amax);
  }
  return {};
}

/// The work of one unit: units below table.all.count write scales, the others data.
template <Format F, class Source>
void cast_unit(const TableView& table, const Amaxes& amaxes, std::int64_t unit) {
  const bool data = unit >= table.all.count;
  const Task& task = data ? table.owned[unit - table.all.count] : table.all[unit];
  const Descriptor& d = table[task];
  const Patch p = patch_of(d, task);
  const TensorScale tensor = tensor_of<F>(d, p, amaxes, !data);
  if (data) return host::cast_owned<F, Source>(d, p, amaxes.blocks, tensor);
  host::shard_scales<F>(d, p, amaxes.blocks, tensor);
}

}  // namespace

void find_block_amaxes(Stream& stream, FormatId format, const TableView& table, Reading reading, const Amaxes& amaxes) {
  visit_format(format, [&]<class F>() {
    if constexpr (F::agreement != formats::Agreement::nothing)
      with_source(reading, [&]<class Source>() { find_amaxes<F, Source>(stream, table, amaxes); });
  });
}

void cast_shards(Stream& stream, FormatId format, const TableView& table, Reading reading, const Amaxes& amaxes) {
  visit_format(format, [&]<class F>() {
    with_source(reading, [&]<class Source>() {
      if constexpr (formats::is_plain<F>)
        launch(stream, "partial_cast", table.owned.count, [=](std::int64_t unit) {
          const Descriptor& d = table[table.owned[unit]];
          host::store_plain<F, Source>(d, patch_of(d, table.owned[unit]));
        });
      else if constexpr (F::agreement != formats::Agreement::nothing && !formats::chooses<F>)
        launch(stream, "partial_cast", table.owned.count + table.all.count,
               [=](std::int64_t unit) { cast_unit<F, Source>(table, amaxes, unit); });
    });
  });
}

}  // namespace tessera::quantizer
