#pragma once
#include "kernels/quantize/host_quantize.hpp"

/// Amaxes, scales and data of a shard's patch on one thread.
namespace tessera::quantizer::host {

/// Largest magnitudes of the patch's tiles over owned elements, for formats that agree on them; returns the largest.
template <Format F, class Source>
inline float tile_amaxes(const Descriptor& d, const Patch& p, std::uint16_t* amaxes) {
  using G = Grid<F, Side::rowwise>;
  constexpr int tile = F::block.rows;
  const SourcePatch<Source> x(d, p);
  const Matrix all = formats::blocks<F>(Side::rowwise, d.matrix);
  std::uint16_t* out =
      amaxes + d.first_block + p.member * all.elements() + p.row / tile * all.columns + p.column / tile;
  Bits<Source> most = 0;
  for (int i = 0; i * tile < p.rows; ++i) {
    const int end = (i + 1) * tile < p.rows ? (i + 1) * tile : p.rows;
    Bits<Source> by_column[edge] = {}, amax[G::columns];
    for (int r = i * tile; r < end; ++r) {
      const int first = p.first_owned(r, d.matrix.columns), last = p.end_owned(r, d.matrix.columns);
      if (first >= last) continue;
      fetch_ahead(x.row(r).first + p.columns);
      largest_by_column<Source>(x.row(r).first + first, last - first, by_column + first);
    }
    fold<tile>(by_column, amax);
    for (int j = 0; j * F::block.columns < p.columns; ++j) {
      if constexpr (formats::agrees_on_blocks(F::agreement))
        out[i * all.columns + j] = bf16(value_of<Source>(amax[j])).bits;
      most = std::max(most, amax[j]);
    }
  }
  return value_of<Source>(most);
}

/// Computes the scales of a patch from complete amaxes.
template <Format F>
inline void grid_from(const Descriptor& d, const Patch& p, const std::uint16_t* amaxes, const TensorScale& tensor,
                      Grid<F, Side::rowwise>& grid) {
  using G = Grid<F, Side::rowwise>;
  const Matrix all = formats::blocks<F>(Side::rowwise, d.matrix);
  const std::int64_t i0 = p.row / F::block.rows, j0 = p.column / F::block.columns;
  const std::uint16_t* in = amaxes + d.first_block + p.member * all.elements() + i0 * all.columns + j0;
  for (int i = 0; i < G::rows && i0 + i < all.rows; ++i) {
    std::uint16_t amax[G::columns] = {};
    if constexpr (formats::agrees_on_blocks(F::agreement))
      for (int j = 0; j < G::columns && j0 + j < all.columns; ++j) amax[j] = in[i * all.columns + j];
    encode_scales<F, FromBf16, G::columns>(amax, LineScales<F>(tensor), grid.scales[i], grid.multipliers[i]);
  }
}

/// Stores codes [first, end) of a row whose first element is number `position` of the data. A nibble at an edge leaves
/// the other one of its byte unchanged.
template <class Element>
inline void store_range(const std::uint8_t* codes, std::int64_t position, int first, int end, std::byte* data) {
  if constexpr (Element::bits == 8) {
    copy_codes(codes + first, end - first, data + position + first);
  } else {
    const auto put = [&](int c) {
      std::byte& b = data[(position + c) / 2];
      const int shift = static_cast<int>((position + c) % 2 * 4);
      b = (b & static_cast<std::byte>(0xF0 >> shift)) | static_cast<std::byte>(codes[c] << shift);
    };
    if (first < end && (position + first) % 2 != 0) put(first++);  // mutation: nibble_before_the_shard
    if (first < end && (position + end) % 2 != 0) put(--end);
    pack_nibbles(codes + first, end - first, reinterpret_cast<std::uint8_t*>(data + (position + first) / 2));
  }
}

/// Stores the data of exactly the owned elements of a patch.
template <Format F, class Source>
inline void cast_owned(const Descriptor& d, const Patch& p, const std::uint16_t* amaxes, const TensorScale& tensor) {
  const SourcePatch<Source> x(d, p);
  const std::int64_t width = d.matrix.columns;
  alignas(64) typename F::Element::Storage codes[edge];
  float multipliers[edge];
  Grid<F, Side::rowwise> grid{};
  grid_from<F>(d, p, amaxes, tensor, grid);
  for (int r = 0; r < p.rows; ++r) {
    const int first = p.first_owned(r, width), end = p.end_owned(r, width);
    if (first >= end) continue;
    const auto row = x.row(r);
    fetch_ahead(row.first + p.columns);
    const std::int64_t position = p.member * d.stride + (p.row + r) * width + p.column;
    spread<F::block.columns>(grid.multipliers[r / F::block.rows], multipliers);
    encode_row<typename F::Element, Source>(row.first + first, multipliers + first, end - first, codes + first);
    store_range<typename F::Element>(codes, position, first, end, d.side[0].data);  // mutation: bytes_behind_the_shard
  }
}

/// Stores the scales of a whole patch, whoever owns its elements; in the compact array that travels, only those of
/// owned blocks.
template <Format F>
inline void shard_scales(const Descriptor& d, const Patch& p, const std::uint16_t* amaxes, const TensorScale& tensor) {
  Grid<F, Side::rowwise> grid{};
  grid_from<F>(d, p, amaxes, tensor, grid);
  if (d.block_scales != nullptr) {
    const OwnedRows owned(d, p);
    return store_block_scales<F>(d, p, grid, owned.begin / F::block.rows,
                                 (owned.end + F::block.rows - 1) / F::block.rows);
  }
  Patch whole = p;
  whole.high = d.matrix.elements();  // every rank writes all scales, padding included
  store_scales<F, Side::rowwise>(d, whole, grid, 0, Grid<F, Side::rowwise>::rows);
  if constexpr (F::columnwise == formats::Columnwise::shared)
    store_scales<F, Side::columnwise>(d, whole, grid, 0, Grid<F, Side::rowwise>::rows);
}

}  // namespace tessera::quantizer::host
