#pragma once
#include "kernels/quantize/team_quantize.hpp"

/// Amaxes, scales and data of a shard's patch by a team of threads.
namespace tessera::quantizer::team {

template <Format F>
TESSERA_FN std::int64_t amax_place(const Descriptor& d, const Patch& p, std::int64_t i, std::int64_t j) {
  const Matrix all = formats::blocks<F>(Side::rowwise, d.matrix);
  return d.first_block + p.member * all.elements() + i * all.columns + j;
}

template <Format F, class Source, class Team>
TESSERA_FN float tile_amaxes(const Team& team, const Descriptor& d, const Patch& p, std::uint16_t* amaxes) {
  using B = Blocks<F, Side::rowwise>;
  const SourcePatch<Source> source(d, p);
  const auto owned_magnitude = [&](int r, int c) {
    const bool owned = c >= p.first_owned(r, d.matrix.columns) && c < p.end_owned(r, d.matrix.columns);
    return owned ? magnitude(source.row(r)(c)) : 0u;
  };
  if constexpr (B::count == 1) {
    const auto top = team.template max<std::uint32_t>(std::int64_t{p.rows} * p.columns, [&](std::int64_t q) {
      return owned_magnitude(static_cast<int>(q / p.columns), static_cast<int>(q % p.columns));
    });
    const Area a = B::area(p, 0);
    team.once([&] { amaxes[amax_place<F>(d, p, a.i, a.j)] = static_cast<std::uint16_t>(top >> 16); });
    return largest_of(top);
  } else {
    const auto of_tile = [&](std::int64_t q) {
      const Area a = B::area(p, q);
      std::uint32_t top = 0;
      for (int r = a.row; r < a.row_end; ++r)
        for (int c = a.column; c < a.column_end; ++c) top = larger(top, owned_magnitude(r, c));
      if (a.row < a.row_end && a.column < a.column_end)
        amaxes[amax_place<F>(d, p, a.i, a.j)] = static_cast<std::uint16_t>(top >> 16);
      return top;
    };
    return largest_of(team.template max<std::uint32_t>(B::count, of_tile));
  }
}

template <Format F>
TESSERA_FN Encoding<typename F::Scale> encoding_of(const Descriptor& d, const Patch& p, const std::uint16_t* amaxes,
                                                   const TensorScale& tensor, std::int64_t i, std::int64_t j) {
  return F::encoding(FromBf16::value(amaxes[amax_place<F>(d, p, i, j)]), tensor);
}

/// A thread takes the bytes of four neighbouring columns, so that no two write one byte.
template <Format F, class Source, class Team>
TESSERA_FN void cast_owned(const Team& team, const Descriptor& d, const Patch& p, const std::uint16_t* amaxes,
                           const TensorScale& tensor) {
  constexpr int run = 4;
  const SourcePatch<Source> source(d, p);
  const std::int64_t width = d.matrix.columns, runs = (p.columns + run - 1) / run;
  team.each(p.rows * runs, [&](std::int64_t q) {
    const int r = static_cast<int>(q / runs), from = static_cast<int>(q % runs) * run;
    const int first = p.first_owned(r, width) > from ? p.first_owned(r, width) : from;
    const int end = p.end_owned(r, width) < from + run ? p.end_owned(r, width) : from + run;
    if (first >= end) return;
    float multiplier = 1;
    if constexpr (F::scaled)
      multiplier =
          encoding_of<F>(d, p, amaxes, tensor, (p.row + r) / F::block.rows, (p.column + from) / F::block.columns)
              .multiplier;
    const std::int64_t position = p.member * d.stride + (p.row + r) * width + p.column;
    for (int c = first; c < end; ++c) {
      const float x = source.row(r)(c);
      if constexpr (F::Element::bits == 4) {
        std::byte& b = d.side[0].data[(position + c) / 2];
        const int shift = static_cast<int>((position + c) % 2 * 4);
        b = (b & static_cast<std::byte>(0xF0 >> shift)) |
            static_cast<std::byte>(F::Element::encode(x * multiplier) << shift);
      } else {
        reinterpret_cast<typename F::Element::Storage*>(d.side[0].data)[position + c] =
            static_cast<typename F::Element::Storage>(F::Element::encode(F::scaled ? x * multiplier : x));
      }
    }
  });
}

template <Format F, class Team>
TESSERA_FN void shard_scales(const Team& team, const Descriptor& d, const Patch& p, const std::uint16_t* amaxes,
                             const TensorScale& tensor) {
  using B = Blocks<F, Side::rowwise>;
  Patch whole = p;
  if (d.block_scales == nullptr) {
    whole.low = 0;
    whole.high = d.matrix.elements();
  }
  team.each(B::count, [&](std::int64_t q) {
    const Area a = B::area(p, q);
    if (!B::held(d, whole, a)) return;
    const auto scale = encoding_of<F>(d, p, amaxes, tensor, a.i, a.j).scale;
    if (d.block_scales != nullptr || F::columnwise == formats::Columnwise::shared)
      store_square_scale<F>(d, p, a, scale);
    else
      store_scale<F, Side::rowwise>(d, p, a, scale);
  });
  store_padding<F, Side::rowwise>(team, d, whole);
  if constexpr (F::columnwise == formats::Columnwise::shared) store_padding<F, Side::columnwise>(team, d, whole);
}

}  // namespace tessera::quantizer::team
