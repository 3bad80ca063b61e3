#pragma once
#include "kernels/quantize/team_quantize.hpp"

/// The columnwise copy of a patch from the rowwise one, by a team of threads.
namespace tessera::quantizer::team {

template <Format F>
TESSERA_FN typename F::Scale load_scale(const Descriptor& d, const Patch& p, const Area& a) {
  if (d.block_scales != nullptr) {
    const Matrix all = formats::blocks<F>(Side::rowwise, d.matrix);
    return static_cast<const typename F::Scale*>(d.block_scales)[p.member * all.elements() + a.i * all.columns + a.j];
  }
  const formats::Block repeat = F::scale_layout(Side::rowwise).repeat;
  const Matrix padded = formats::padded_extent<F>(Side::rowwise, d.matrix);
  return static_cast<const typename F::Scale*>(
      d.side[0].scales)[p.member * padded.elements() +
                        scale_place<F>(Side::rowwise, padded, a.i * repeat.rows, a.j * repeat.columns)];
}

template <Format F>
TESSERA_FN std::uint32_t load_code(const Descriptor& d, Side side, std::int64_t position) {
  const std::byte* data = d.side[static_cast<int>(side)].data;
  if constexpr (F::Element::bits == 4)
    return static_cast<std::uint32_t>(data[position / 2]) >> (position % 2 * 4) & 15u;
  else
    return reinterpret_cast<const typename F::Element::Storage*>(data)[position];
}

template <Format F, class Team>
TESSERA_FN void build_columnwise(const Team& team, const Descriptor& d, const Patch& p) {
  using B = Blocks<F, Side::rowwise>;
  Descriptor expanded = d;  // the arrays are written here, wherever the scales come from
  expanded.block_scales = nullptr;
  Patch whole = p;
  whole.low = 0;
  whole.high = d.matrix.elements();
  team.each(B::count, [&](std::int64_t q) {
    const Area a = B::area(p, q);
    if (!B::held(d, whole, a)) return;
    const auto scale = load_scale<F>(d, p, a);
    if (d.block_scales != nullptr) store_scale<F, Side::rowwise>(d, p, a, scale);
    store_scale<F, Side::columnwise>(d, p, a, scale);
  });
  if (d.block_scales != nullptr) store_padding<F, Side::rowwise>(team, expanded, whole);
  store_padding<F, Side::columnwise>(team, expanded, whole);
  if constexpr (F::columnwise == formats::Columnwise::transposed) {
    if (d.side[1].data == nullptr) return;
    constexpr int run = 8;  // rows that one thread gathers from a column
    const std::int64_t runs = (p.rows + run - 1) / run;
    team.each(p.columns * runs, [&](std::int64_t q) {
      const int c = static_cast<int>(q / runs), from = static_cast<int>(q % runs) * run;
      const int end = from + run < p.rows ? from + run : p.rows;
      store_transposed<F>(d, p, {0, 0, from, end, c, c + 1}, [&](int r, int column) {
        return load_code<F>(d, Side::rowwise, p.member * d.stride + (p.row + r) * d.matrix.columns + p.column + column);
      });
    });
  }
}

}  // namespace tessera::quantizer::team
