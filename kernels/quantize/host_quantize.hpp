#pragma once
#include <atomic>

#include "kernels/quantize/host_gelu.hpp"
#include "kernels/quantize/host_patch.hpp"

/// Full quantization of a patch on one thread.
namespace tessera::quantizer::host {

/// The owned rows of a patch; only whole rows are owned.
struct OwnedRows {
  int begin, end;
  OwnedRows(const Descriptor& d, const Patch& p)
      : begin(static_cast<int>(clamp_to(p.low / d.matrix.columns - p.row, 0, p.rows))),
        end(static_cast<int>(clamp_to(p.high / d.matrix.columns - p.row, 0, p.rows))) {}
};

/// Applies the signed Hadamard transform along the columns to sixteen rows: fp32 butterflies, then a factor of 1/4.
template <class Source>
inline void rotate(const SourcePatch<Source>& x, int first, int n, float (&y)[hadamard_block][edge]) {
  for (int r = 0; r < hadamard_block; ++r) {
    const auto row = x.row(first + r);
    const std::uint32_t flip = (hadamard_signs >> r & 1u) << 31;
    for (int c = 0; c < n; ++c) y[r][c] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(row(c)) ^ flip);
  }
  for (int stride = 1; stride < hadamard_block; stride *= 2)
    for (int r = 0; r < hadamard_block; ++r) {
      if (r & stride) continue;
      for (int c = 0; c < n; ++c) {
        const float a = y[r][c], b = y[r + stride][c];
        y[r][c] = a + b;
        y[r + stride][c] = a - b;
      }
    }
  for (auto& row : y)
    for (int c = 0; c < n; ++c) row[c] *= 0.25f;
}

/// Calls f(how to read, address by row number) for the rows of one columnwise block: the source, or its rotation.
template <Format F, class M, class Use>
inline void with_column_block(const SourcePatch<typename M::Source>& x, int first, int n, const Use& f) {
  if constexpr (F::hadamard && M::rotates) {  // mutation: hadamard_of_gradients_alone
    alignas(64) float y[hadamard_block][edge];
    rotate(x, first, n, y);
    f(FromFp32(), [&](int r) { return static_cast<const float*>(y[r - first]); });
  } else {
    f(typename M::Source(), [&](int r) { return x.row(r).first; });
  }
}

/// Encodes one row, with stochastic rounding if mode and format ask for it.
template <Format F, class M, class Source>
inline void encode(const Stored<Source>* x, const float* multipliers, const Descriptor& d, const Patch& p, int r,
                   Side side, std::uint8_t* codes) {
  if constexpr (formats::may_draw<F> && M::draws) {
    std::uint8_t draws[edge];
    draw_row(draw_key(d, side), draw_index(d, p, r), p.columns, draws);
    encode_row_at_random<Source>(x, multipliers, draws, p.columns, codes);
  } else {
    encode_row<typename F::Element, Source>(x, multipliers, p.columns, codes);
  }
}

template <Format F>
inline std::byte* row_of(const Descriptor& d, const Patch& p, Side side, int r) {
  const std::int64_t element = p.member * d.stride + (p.row + r) * d.matrix.columns + p.column;
  return d.side[static_cast<int>(side)].data + formats::data_bytes<F>(element);
}

/// Quantizes in blocks along a row.
template <Format F, class M>
inline void quantize_rows(const SourcePatch<typename M::Source>& x, const Descriptor& d, const Patch& p,
                          const LineScales<F>& lines) {
  using Source = typename M::Source;
  using G = Grid<F, Side::rowwise>;
  constexpr int width = F::block.columns;
  const OwnedRows owned(d, p);
  G grid;
  Bits<Source> amax[G::rows][G::columns] = {};
  for (int r = owned.begin; r < owned.end; ++r) largest_by_block<Source, width>(x.row(r).first, p.columns, amax[r]);
  encode_scales<F, Source, G::rows * G::columns, G::columns>(amax[0], lines, grid.scales[0], grid.multipliers[0]);
  if constexpr (formats::chooses<F>)
    for (int r = owned.begin; r < owned.end; ++r)
      choose<F, Source, width>([&](int i) { return x.row(i).first; }, r, r + 1, p.columns, amax[r], lines[r],
                               grid.scales[r], grid.multipliers[r]);
  for (int r = owned.begin; r < owned.end; ++r) {
    float multipliers[edge];
    spread<width>(grid.multipliers[r], multipliers);
    alignas(64) std::uint8_t codes[edge];
    std::byte* out = row_of<F>(d, p, Side::rowwise, r);
    std::uint8_t* to = F::Element::bits == 8 ? reinterpret_cast<std::uint8_t*>(out) : codes;
    encode<F, M, Source>(x.row(r).first, multipliers, d, p, r, Side::rowwise, to);
    if (F::Element::bits != 8) store_row<typename F::Element>(codes, p.columns, out);
  }
  store_scales<F, Side::rowwise>(d, p, grid, owned.begin, owned.end);
}

/// Quantizes in blocks along a column.
template <Format F, class M>
inline void quantize_columns(const SourcePatch<typename M::Source>& x, const Descriptor& d, const Patch& p,
                             const LineScales<F>& lines) {
  using G = Grid<F, Side::columnwise>;
  constexpr int height = F::block.columns;
  const OwnedRows owned(d, p);
  const int first_block = owned.begin / height, end_block = (owned.end + height - 1) / height;
  constexpr bool in_place = F::columnwise_order == formats::Order::as_source && F::Element::bits == 8;
  G grid;
  Codes codes;
  for (int i = first_block; i < end_block; ++i) {
    const int begin = i * height, end = begin + height < p.rows ? begin + height : p.rows;
    with_column_block<F, M>(x, begin, p.columns, [&]<class Source>(Source, const auto& row) {
      Bits<Source> amax[edge] = {};
      for (int r = begin; r < end; ++r) largest_by_column<Source>(row(r), p.columns, amax);
      encode_scales<F, Source, edge, 1>(amax, lines, grid.scales[i], grid.multipliers[i]);
      if constexpr (formats::chooses<F>)
        choose<F, Source, 1>(row, begin, end, p.columns, amax, lines[0], grid.scales[i], grid.multipliers[i]);
      for (int r = begin; r < end; ++r)
        encode<F, M, Source>(
            row(r), grid.multipliers[i], d, p, r, Side::columnwise,
            in_place ? reinterpret_cast<std::uint8_t*>(row_of<F>(d, p, Side::columnwise, r)) : codes.row(r));
    });
  }
  if constexpr (F::columnwise_order == formats::Order::transposed) {
    store_transposed<typename F::Element>(d, p, codes, owned.begin, owned.end);
  } else if constexpr (!in_place) {
    for (int r = owned.begin; r < owned.end; ++r)
      store_row<typename F::Element>(codes.row(r), p.columns, row_of<F>(d, p, Side::columnwise, r));
  }
  store_scales<F, Side::columnwise>(d, p, grid, first_block, end_block);
}

/// Quantizes in square tiles: one encoding serves both copies.
template <Format F, class M>
inline void quantize_tiles(const SourcePatch<typename M::Source>& x, const Descriptor& d, const Patch& p,
                           const LineScales<F>& tensor) {
  using Source = typename M::Source;
  using G = Grid<F, Side::rowwise>;
  constexpr int tile = F::block.rows;
  const OwnedRows owned(d, p);
  const int first_tile = owned.begin / tile, end_tile = (owned.end + tile - 1) / tile;
  G grid;
  Codes codes;
  for (int i = first_tile; i < end_tile; ++i) {
    const int begin = i * tile, end = begin + tile < p.rows ? begin + tile : p.rows;
    Bits<Source> amax[G::columns] = {};
    if constexpr (F::scaled) {
      Bits<Source> by_column[edge] = {};
      for (int r = begin; r < end; ++r) largest_by_column<Source>(x.row(r).first, p.columns, by_column);
      fold<tile>(by_column, amax);
    }
    encode_scales<F, Source, G::columns>(amax, tensor, grid.scales[i], grid.multipliers[i]);
    if constexpr (formats::chooses<F>)
      choose<F, Source, tile>([&](int r) { return x.row(r).first; }, begin, end, p.columns, amax, tensor[0],
                              grid.scales[i], grid.multipliers[i]);
    float multipliers[edge];
    spread<tile>(grid.multipliers[i], multipliers);
    for (int r = begin; r < end; ++r) {
      encode_row<typename F::Element, Source>(x.row(r).first, multipliers, p.columns, codes.row(r));
      if (d.side[0].data) store_row<typename F::Element>(codes.row(r), p.columns, row_of<F>(d, p, Side::rowwise, r));
    }
  }
  store_square_scales<F>(d, p, grid, first_tile, end_tile);
  if constexpr (F::columnwise == formats::Columnwise::transposed)
    if (d.side[1].data) store_transposed<typename F::Element>(d, p, codes, owned.begin, owned.end);
}

/// Formats without scales have no blocks. The elements of a row of patches are cut into equal runs, one a patch, and
/// each patch stores the owned ones of its run.
template <Format F, class Source>
inline void store_plain(const Descriptor& d, const Patch& p) {
  const std::int64_t width = d.matrix.columns, first = p.row * width, all = p.rows * width, part = p.column / edge;
  const std::int64_t begin = std::max(p.low, first + all * part / d.patches.columns);
  const std::int64_t end = std::min(p.high, first + all * (part + 1) / d.patches.columns);
  if (begin >= end) return;
  const auto* x = SourcePatch<Source>(d, p).origin - (first + p.column);
  auto* out = reinterpret_cast<typename F::Element::Storage*>(d.side[0].data) + p.member * d.stride;
  encode_plain<typename F::Element, Source>(x + begin, end - begin, out + begin);
}

template <Format F, class M>
inline void quantize_copies(const SourcePatch<typename M::Source>& x, const Descriptor& d, const Patch& p) {
  const auto lines = [&](Side side) { return LineScales<F>(d, p, side); };
  if constexpr (F::block.rows == F::block.columns) {
    quantize_tiles<F, M>(x, d, p, lines(d.side[0].amax ? Side::rowwise : Side::columnwise));
  } else {
    if (d.side[0].data) quantize_rows<F, M>(x, d, p, lines(Side::rowwise));
    if (d.side[1].data) quantize_columns<F, M>(x, d, p, lines(Side::columnwise));
  }
}

/// What the quantizer sees of n values of a row.
template <class Source>
using Staged = std::conditional_t<std::is_same_v<Source, FromFp32>, FromFp32, FromBf16>;
template <class Source>
inline void stage_row(const Stored<Source>* x, int n, Stored<Staged<Source>>* out) {
  for (int c = 0; c < n; ++c) {
    if constexpr (std::is_same_v<Source, FromMaster>)
      out[c] = bf16(x[c]).bits;
    else
      out[c] = x[c];
  }
}

template <Format F, class M>
inline void quantize_patch(const Descriptor& d, const Patch& p) {
  if constexpr (formats::is_plain<F>) {
    store_plain<F, typename M::Source>(d, p);
  } else {
    // A contiguous copy, since each value is read several times and rows a power of two apart share cache sets. Masters
    // are rounded, and gelus computed, on the way.
    using Source = typename M::Source;
    alignas(64) Stored<Staged<Source>> staged[edge][edge];
    const SourcePatch<Source> x(d, p);
    const OwnedRows owned(d, p);
    std::uint32_t found = 0;
    for (int r = owned.begin; r < owned.end; ++r) {
      const auto row = x.row(r);
      fetch_ahead(row.first + p.columns);
      if constexpr (Computed<Source>)
        compute_row<Source>(d, p, r, row.first, staged[r]);
      else
        stage_row<Source>(row.first, p.columns, staged[r]);
      if constexpr (std::is_base_of_v<FromBf16, Source>)
        for (int c = 0; c < p.columns; ++c) found |= ((staged[r][c] & 0x7F80u) + 0x0080u) & 0x8000u;
      fetch_to_write<F>(d, p, r);
    }
    if (found != 0 && d.not_finite) std::atomic_ref(*d.not_finite).store(1, std::memory_order_relaxed);
    if constexpr (Summed<Source>)
      if (d.column_sums) sum_columns(d, p, staged);
    using FromStage = Mode<Staged<Source>, M::rotates, M::draws>;
    quantize_copies<F, FromStage>(SourcePatch<Staged<Source>>(staged[0], edge), d, p);
  }
}

/// Calls f(how to read, largest magnitudes by column) for each sixteen owned rows as the columnwise copy sees them.
template <Format F, class M, class Use>
inline void each_column_band(const SourcePatch<typename M::Source>& x, const OwnedRows& owned, int columns,
                             const Use& f) {
  for (int first = owned.begin; first < owned.end; first += hadamard_block)
    with_column_block<F, M>(x, first, columns, [&]<class Source>(Source source, const auto& row) {
      Bits<Source> by_column[edge] = {};
      for (int r = first; r < first + hadamard_block && r < owned.end; ++r)
        largest_by_column<Source>(row(r), columns, by_column);
      f(source, by_column);
    });
}

/// Largest magnitude among the owned elements of a patch, as the copy of `side` sees them.
template <Format F, class M>
inline float largest(const Descriptor& d, const Patch& p, Side side) {
  const SourcePatch<typename M::Source> x(d, p);
  const OwnedRows owned(d, p);
  if (side == Side::rowwise) {
    Bits<typename M::Source> by_column[edge] = {}, top[1];
    for (int r = owned.begin; r < owned.end; ++r) {
      fetch_ahead(x.row(r).first + p.columns);
      largest_by_column<typename M::Source>(x.row(r).first, p.columns, by_column);
    }
    fold<edge>(by_column, top);
    return value_of<typename M::Source>(top[0]);
  }
  float most = 0;
  each_column_band<F, M>(x, owned, p.columns, [&]<class Source>(Source, const Bits<Source>(&by_column)[edge]) {
    Bits<Source> top[1];
    fold<edge>(by_column, top);
    most = std::max(most, value_of<Source>(top[0]));
  });
  return most;
}

/// Raises the amaxes of the lines on both sides by those of a patch's owned elements.
template <Format F, class M>
inline void raise_lines(const Descriptor& d, const Patch& p) {
  using Source = typename M::Source;
  const SourcePatch<Source> x(d, p);
  const OwnedRows owned(d, p);
  const auto raise = [&](Side side, int line, float amax) {
    const std::atomic_ref<float> shared(d.side[static_cast<int>(side)].amax[amax_place<F>(side, d, p, line, line)]);
    float now = shared.load(std::memory_order_relaxed);
    while (now < amax && !shared.compare_exchange_weak(now, amax, std::memory_order_relaxed)) {
    }
  };
  for (int r = owned.begin; r < owned.end && d.side[0].amax; ++r) {
    Bits<Source> top[1];
    largest_by_block<Source, edge>(x.row(r).first, p.columns, top);
    raise(Side::rowwise, r, value_of<Source>(top[0]));
  }
  if (d.side[1].amax == nullptr) return;
  float most[edge] = {};
  each_column_band<F, M>(x, owned, p.columns, [&]<class Seen>(Seen, const Bits<Seen>(&by_column)[edge]) {
    for (int c = 0; c < p.columns; ++c) most[c] = std::max(most[c], value_of<Seen>(by_column[c]));
  });
  for (int c = 0; c < p.columns; ++c) raise(Side::columnwise, c, most[c]);
}

}  // namespace tessera::quantizer::host
