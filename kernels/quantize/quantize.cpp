#include "kernels/quantize/quantize.hpp"

#include "kernels/base/launch.hpp"
#include "kernels/quantize/host_quantize.hpp"
#include "kernels/quantize/team_quantize.hpp"

namespace tessera {
namespace quantizer {
namespace {

using formats::Format;

template <Format F, class M, class Team> TESSERA_FN void quantize_unit(const Team& team, const TableView& table, std::int64_t unit) {
  const int item = table.owned.owner(unit);
  const Descriptor& d = table.items[item];
  const Patch p = patch_of(d, d.first_patch_row, unit - table.owned.first[item]);
  if constexpr (one_thread<Team>) host::quantize_patch<F, M>(d, p);
  else team::quantize_patch<F, M>(team, d, p);
}

template <Format F, class M, class Team> TESSERA_FN void largest_unit(const Team& team, const TableView& table, std::int64_t unit) {
  const int item = table.owned.owner(unit);
  const Descriptor& d = table.items[item];
  const Patch p = patch_of(d, d.first_patch_row, unit - table.owned.first[item]);
  constexpr bool rotated = F::hadamard && M::role != Role::weight;  // only then do the copies see different values
  float top = 0;
  for (int s = 0; s < 2; ++s) {
    if (s == 0 || rotated) {
      if constexpr (one_thread<Team>) top = host::largest<F, M>(d, p, static_cast<Side>(s));
      else top = team::largest<F, M>(team, d, p, static_cast<Side>(s));
    }
    team.once([&] { table.largest[s][unit] = top; });
  }
}

template <class Team> TESSERA_FN void reduce_member(const Team& team, const TableView& table, std::int64_t unit) {
  const int item = table.members.owner(unit);
  const Descriptor& d = table.items[item];
  const std::int64_t member = unit - table.members.first[item];
  for (int s = 0; s < 2; ++s) {
    if (d.side[s].amax == nullptr) continue;
    const float top = largest_of_member(team, table, item, member, s);
    team.once([&] { d.side[s].amax[member] = top; });
  }
}

template <class F, class M> struct FindAmax {
  static void run(Stream& stream, const TableView& table) {
    if constexpr (F::tensor_amax) {
      launch_rows(stream, "quantize: largest of patches", table.owned_units,
                  KOKKOS_LAMBDA(const Row& row, std::int64_t unit) { largest_unit<F, M>(row, table, unit); });
      launch_rows(stream, "quantize: amax of members", table.member_units,
                  KOKKOS_LAMBDA(const Row& row, std::int64_t unit) { reduce_member(row, table, unit); });
    }
  }
};
template <class F, class M> struct MakeCopies {
  static void run(Stream& stream, const TableView& table) {
    launch_rows(stream, "quantize", table.owned_units,
                KOKKOS_LAMBDA(const Row& row, std::int64_t unit) { quantize_unit<F, M>(row, table, unit); });
  }
};

template <template <class, class> class Work, Format F, class Source> void run_role(Stream& stream, const TableView& table, Role role) {
  if constexpr (F::hadamard) {
    if (role == Role::activation) return Work<F, Mode<Source, Role::activation>>::run(stream, table);
    if (role == Role::gradient) return Work<F, Mode<Source, Role::gradient>>::run(stream, table);
  }
  Work<F, Mode<Source, Role::weight>>::run(stream, table);
}

template <template <class, class> class Work> void run(Stream& stream, const QuantizeTable& table, Precision precision, Role role) {
  require(table.whole_block_rows(), "quantize", "what is owned must consist of whole rows of blocks");
  const TableView view = table.view();
  visit_format(table.format(), [&]<class F>() {
    if (F::hadamard && role != Role::weight)
      for (const Descriptor& d : table.descriptors())
        require(d.side[0].amax == nullptr || d.side[0].amax != d.side[1].amax, "quantize", "a rotated copy has an amax of its own");
    if (table.values_type() == DType::bf16) run_role<Work, F, FromBf16>(stream, view, role);
    else if (precision == Precision::bf16_first) run_role<Work, F, FromMaster>(stream, view, role);
    else run_role<Work, F, FromFp32>(stream, view, role);
  });
}

}  // namespace
}  // namespace quantizer

void find_amax(Stream& stream, const QuantizeTable& table, Precision precision, Role role) {
  quantizer::run<quantizer::FindAmax>(stream, table, precision, role);
}

void quantize_with_amax(Stream& stream, const QuantizeTable& table, Precision precision, Role role) {
  quantizer::run<quantizer::MakeCopies>(stream, table, precision, role);
}

void quantize(Stream& stream, const QuantizeTable& table, Precision precision, Role role) {
  find_amax(stream, table, precision, role);
  quantize_with_amax(stream, table, precision, role);
}

}  // namespace tessera
