#include "kernels/base/launch.hpp"
#include "kernels/quantize/host_shard.hpp"
#include "kernels/quantize/quantize.hpp"
#include "kernels/quantize/team_shard.hpp"

namespace tessera {
namespace quantizer {
namespace {

using formats::Format;
using formats::TensorScale;

/// Entries of the amax buffer that one row of a launch clears.
constexpr std::int64_t chunk = 4096;

template <Format F, class Source, class Team>
TESSERA_FN void amax_unit(const Team& team, const TableView& table, std::uint16_t* amaxes, std::int64_t unit) {
  const int item = table.owned.owner(unit);
  const Descriptor& d = table.items[item];
  const Patch p = patch_of(d, d.first_patch_row, unit - table.owned.first[item]);
  float top;
  if constexpr (one_thread<Team>)
    top = host::tile_amaxes<F, Source>(d, p, amaxes);
  else
    top = team::tile_amaxes<F, Source>(team, d, p, amaxes);
  if constexpr (F::tensor_amax) team.once([&] { table.largest[0][unit] = top; });
}

template <class Team>
TESSERA_FN void member_unit(const Team& team, const TableView& table, std::uint16_t* of_members, std::int64_t unit) {
  const int item = table.members.owner(unit);
  const std::int64_t member = unit - table.members.first[item];
  const float top = largest_of_member(team, table, item, member, 0);
  team.once([&] { of_members[table.items[item].first_member + member] = bf16(top).bits; });
}

template <Format F, class Source>
void run_amax(Stream& stream, const TableView& table, std::uint16_t* amaxes, std::int64_t blocks,
              std::int64_t members) {
  const std::int64_t n = blocks + members;
  launch_rows(
      stream, "block_amax: clear", ceil_div(n, chunk), KOKKOS_LAMBDA(const Row& row, std::int64_t r) {
        const std::int64_t begin = r * chunk, count = n - begin < chunk ? n - begin : chunk;
        row.each(count, [&](std::int64_t j) { amaxes[begin + j] = 0; });
      });
  launch_rows(
      stream, "block_amax", table.owned_units,
      KOKKOS_LAMBDA(const Row& row, std::int64_t unit) { amax_unit<F, Source>(row, table, amaxes, unit); });
  if constexpr (F::tensor_amax) {
    std::uint16_t* of_members = amaxes + blocks;
    launch_rows(
        stream, "block_amax: members", table.member_units,
        KOKKOS_LAMBDA(const Row& row, std::int64_t unit) { member_unit(row, table, of_members, unit); });
  }
}

/// The member's scale, from its amax; the first of its patches keeps the amax with the copies.
template <Format F, class Team>
TESSERA_FN TensorScale tensor_of(const Team& team, const Descriptor& d, const Patch& p, const std::uint16_t* of_members,
                                 bool keep) {
  if constexpr (F::tensor_amax) {
    const float amax = FromBf16::value(of_members[d.first_member + p.member]);
    if (keep && p.row == 0 && p.column == 0)
      team.once([&] {
        for (const Place& copy : d.side)
          if (copy.amax) copy.amax[p.member] = amax;
      });
    return F::tensor_scale(amax);
  }
  return {};
}

/// Units below table.all_units write scales, the others data.
template <Format F, class Source, class Team>
TESSERA_FN void cast_unit(const Team& team, const TableView& table, const std::uint16_t* amaxes,
                          const std::uint16_t* of_members, std::int64_t unit) {
  const bool data = !F::scaled || unit >= table.all_units;
  const std::int64_t local = F::scaled && data ? unit - table.all_units : unit;
  const UnitMap& map = data ? table.owned : table.all;
  const int item = map.owner(local);
  const Descriptor& d = table.items[item];
  const Patch p = patch_of(d, data ? d.first_patch_row : 0, local - map.first[item]);
  const TensorScale tensor = tensor_of<F>(team, d, p, of_members, !data);
  if constexpr (one_thread<Team>) {
    if (data) return host::cast_owned<F, Source>(d, p, amaxes, tensor);
    if constexpr (F::scaled) host::shard_scales<F>(d, p, amaxes, tensor);
  } else {
    if (data) return team::cast_owned<F, Source>(team, d, p, amaxes, tensor);
    if constexpr (F::scaled) team::shard_scales<F>(team, d, p, amaxes, tensor);
  }
}

template <Format F, class Source>
void run_cast(Stream& stream, const TableView& table, const std::uint16_t* amaxes, std::int64_t blocks) {
  const std::uint16_t* of_members = amaxes + blocks;
  launch_rows(
      stream, "partial_cast", table.owned_units + (F::scaled ? table.all_units : 0),
      KOKKOS_LAMBDA(const Row& row, std::int64_t unit) { cast_unit<F, Source>(row, table, amaxes, of_members, unit); });
}

std::uint16_t* amax_buffer(const QuantizeTable& table, const Tensor& amaxes, const char* kernel) {
  require(amaxes.elements() == table.amax_entries() && (amaxes.type == DType::bf16 || table.amax_entries() == 0),
          kernel, "amaxes are bf16 [table.amax_entries()]");
  return static_cast<std::uint16_t*>(amaxes.data);
}

}  // namespace
}  // namespace quantizer

void block_amax(Stream& stream, const QuantizeTable& table, const Tensor& amaxes) {
  std::uint16_t* out = quantizer::amax_buffer(table, amaxes, "block_amax");
  const quantizer::TableView view = table.view();
  visit_format(table.format(), [&]<class F>() {
    if constexpr (F::agreement == formats::Agreement::nothing)
      refuse("block_amax", "ranks agree on nothing for this format");
    else if (table.values_type() == DType::bf16)
      quantizer::run_amax<F, quantizer::FromBf16>(stream, view, out, table.block_entries(), table.member_entries());
    else
      quantizer::run_amax<F, quantizer::FromMaster>(stream, view, out, table.block_entries(), table.member_entries());
  });
}

void partial_cast(Stream& stream, const QuantizeTable& table, const Tensor& amaxes) {
  const std::uint16_t* in = quantizer::amax_buffer(table, amaxes, "partial_cast");
  const quantizer::TableView view = table.view();
  require(!table.scales_travel() || table.whole_block_rows(), "partial_cast",
          "scales travel in whole rows of blocks only");
  visit_format(table.format(), [&]<class F>() {
    if constexpr (F::scaled && F::agreement == formats::Agreement::nothing)
      refuse("partial_cast", "this format travels as bf16");
    else if (table.values_type() == DType::bf16)
      quantizer::run_cast<F, quantizer::FromBf16>(stream, view, in, table.block_entries());
    else
      quantizer::run_cast<F, quantizer::FromMaster>(stream, view, in, table.block_entries());
  });
}

}  // namespace tessera
