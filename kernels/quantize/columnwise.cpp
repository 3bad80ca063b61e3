#include "kernels/base/launch.hpp"
#include "kernels/quantize/host_columnwise.hpp"
#include "kernels/quantize/quantize.hpp"
#include "kernels/quantize/team_columnwise.hpp"

namespace tessera {
namespace quantizer {
namespace {

using formats::Format;

template <Format F, class Team>
TESSERA_FN void columnwise_unit(const Team& team, const TableView& table, std::int64_t unit) {
  const int item = table.all.owner(unit);
  const Descriptor& d = table.items[item];
  const Patch p = patch_of(d, 0, unit - table.all.first[item]);
  if constexpr (one_thread<Team>)
    host::build_columnwise<F>(d, p);
  else
    team::build_columnwise<F>(team, d, p);
  if constexpr (F::tensor_amax)
    if (p.row == 0 && p.column == 0 && d.side[1].amax && d.side[1].amax != d.side[0].amax)
      team.once([&] { d.side[1].amax[p.member] = d.side[0].amax[p.member]; });
}

template <Format F>
void run_columnwise(Stream& stream, const TableView& table) {
  launch_rows(
      stream, "build_columnwise", table.all_units,
      KOKKOS_LAMBDA(const Row& row, std::int64_t unit) { columnwise_unit<F>(row, table, unit); });
}

/// Rows of the scale matrix run along the blocks' long side: that of MXFP8's columnwise copy is the array transposed.
template <Format F, class Team>
TESSERA_FN void swizzle_unit(const Team& team, const TableView& table, std::int64_t unit) {
  const int item = table.all.owner(unit);
  const Descriptor& d = table.items[item];
  const Patch p = patch_of(d, 0, unit - table.all.first[item]);
  for (int s = 0; s < 2; ++s) {
    const Place& copy = d.side[s];
    if (copy.swizzled == nullptr || copy.scales == nullptr) continue;
    const auto side = static_cast<Side>(s);
    const ScaleSpan span = scale_span<F>(side, d, p);
    const Matrix padded = formats::padded_extent<F>(side, d.matrix);
    const Matrix grid = formats::in_order(F::scale_layout(side).order, padded);
    const bool turned = side == Side::columnwise;
    const auto* in = static_cast<const std::uint8_t*>(copy.scales) + p.member * padded.elements();
    std::uint8_t* out = copy.swizzled + p.member * padded.elements();
    const std::int64_t width = span.column_end - span.column;
    team.each((span.row_end - span.row) * width, [&](std::int64_t q) {
      const std::int64_t a = span.row + q / width, b = span.column + q % width;
      const std::int64_t place = turned ? formats::swizzled(b, a, grid.rows) : formats::swizzled(a, b, grid.columns);
      out[place] = in[scale_place<F>(side, padded, a, b)];
    });
  }
}

template <Format F>
void run_swizzle(Stream& stream, const TableView& table) {
  launch_rows(
      stream, "swizzle_scales", table.all_units,
      KOKKOS_LAMBDA(const Row& row, std::int64_t unit) { swizzle_unit<F>(row, table, unit); });
}

}  // namespace
}  // namespace quantizer

void build_columnwise(Stream& stream, const QuantizeTable& table) {
  const quantizer::TableView view = table.view();
  visit_format(table.format(), [&]<class F>() {
    if constexpr (!F::scaled)
      return;
    else if constexpr (F::columnwise == formats::Columnwise::requantized)
      refuse("build_columnwise", "this format's columnwise copy needs the source");
    else
      quantizer::run_columnwise<F>(stream, view);
  });
}

void swizzle_scales(Stream& stream, const QuantizeTable& table) {
  const quantizer::TableView view = table.view();
  visit_format(table.format(), [&]<class F>() {
    if constexpr (F::scaled && formats::swizzles<F>())
      quantizer::run_swizzle<F>(stream, view);
    else
      refuse("swizzle_scales", "no block-scaled GEMM takes this format");
  });
}

}  // namespace tessera
