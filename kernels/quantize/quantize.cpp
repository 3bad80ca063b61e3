#include "kernels/quantize/quantize.hpp"

#include "kernels/base/launch.hpp"
#include "kernels/quantize/host_quantize.hpp"
#include "kernels/quantize/team_quantize.hpp"

namespace tessera {
namespace quantizer {
namespace {

using formats::Format;

template <Format F, class M, class Team>
TESSERA_FN void quantize_unit(const Team& team, const TableView& table, std::int64_t unit) {
  const int item = table.owned.owner(unit);
  const Descriptor& d = table.items[item];
  const Patch p = patch_of(d, d.first_patch_row, unit - table.owned.first[item]);
  if constexpr (one_thread<Team>)
    host::quantize_patch<F, M>(d, p);
  else
    team::quantize_patch<F, M>(team, d, p);
}

template <Format F, class M, class Team>
TESSERA_FN void largest_unit(const Team& team, const TableView& table, std::int64_t unit) {
  const int item = table.owned.owner(unit);
  const Descriptor& d = table.items[item];
  const Patch p = patch_of(d, d.first_patch_row, unit - table.owned.first[item]);
  constexpr bool rotated =
      F::hadamard && M::purpose != Purpose::weight;  // only then do the copies see different values
  float top = 0;
  for (int s = 0; s < 2; ++s) {
    if (s == 0 || rotated) {
      if constexpr (one_thread<Team>)
        top = host::largest<F, M>(d, p, static_cast<Side>(s));
      else
        top = team::largest<F, M>(team, d, p, static_cast<Side>(s));
    }
    team.once([&] { table.largest[s][unit] = top; });
  }
}

template <class Team>
TESSERA_FN void reduce_member(const Team& team, const TableView& table, std::int64_t unit) {
  const int item = table.members.owner(unit);
  const Descriptor& d = table.items[item];
  const std::int64_t member = unit - table.members.first[item];
  for (int s = 0; s < 2; ++s) {
    if (d.side[s].amax == nullptr) continue;
    const float top = largest_of_member(team, table, item, member, s);
    team.once([&] { d.side[s].amax[member] = top; });
  }
}

template <class F, class M>
struct FindAmax {
  static void run(Stream& stream, const TableView& table) {
    if constexpr (F::tensor_amax) {
      launch_rows(
          stream, "quantize: largest of patches", table.owned_units,
          KOKKOS_LAMBDA(const Row& row, std::int64_t unit) { largest_unit<F, M>(row, table, unit); });
      launch_rows(
          stream, "quantize: amax of members", table.member_units,
          KOKKOS_LAMBDA(const Row& row, std::int64_t unit) { reduce_member(row, table, unit); });
    }
  }
};
template <class F, class M>
struct MakeCopies {
  static void run(Stream& stream, const TableView& table) {
    launch_rows(
        stream, "quantize", table.owned_units,
        KOKKOS_LAMBDA(const Row& row, std::int64_t unit) { quantize_unit<F, M>(row, table, unit); });
  }
};

template <template <class, class> class Work, Format F, class Source>
void run_purpose(Stream& stream, const TableView& table, Purpose purpose) {
  if constexpr (F::hadamard) {
    if (purpose == Purpose::activation) return Work<F, Mode<Source, Purpose::activation>>::run(stream, table);
    if (purpose == Purpose::gradient) return Work<F, Mode<Source, Purpose::gradient>>::run(stream, table);
  }
  Work<F, Mode<Source, Purpose::weight>>::run(stream, table);
}

template <template <class, class> class Work>
void run(Stream& stream, const QuantizeTable& table, Precision precision, Purpose purpose) {
  require(table.whole_block_rows(), "quantize", "what is owned must consist of whole rows of blocks");
  const TableView view = table.view();
  visit_format(table.format(), [&]<class F>() {
    if (F::hadamard && purpose != Purpose::weight)
      for (const Descriptor& d : table.descriptors())
        require(d.side[0].amax == nullptr || d.side[0].amax != d.side[1].amax, "quantize",
                "a rotated copy has an amax of its own");
    if (table.values_type() == DType::bf16)
      run_purpose<Work, F, FromBf16>(stream, view, purpose);
    else if (precision == Precision::bf16_first)
      run_purpose<Work, F, FromMaster>(stream, view, purpose);
    else
      run_purpose<Work, F, FromFp32>(stream, view, purpose);
  });
}

}  // namespace
}  // namespace quantizer

void find_amax(Stream& stream, const QuantizeTable& table, Precision precision, Purpose purpose) {
  quantizer::run<quantizer::FindAmax>(stream, table, precision, purpose);
}

void quantize_with_amax(Stream& stream, const QuantizeTable& table, Precision precision, Purpose purpose) {
  quantizer::run<quantizer::MakeCopies>(stream, table, precision, purpose);
}

void quantize(Stream& stream, const QuantizeTable& table, Precision precision, Purpose purpose) {
  find_amax(stream, table, precision, purpose);
  quantize_with_amax(stream, table, precision, purpose);
}

}  // namespace tessera
