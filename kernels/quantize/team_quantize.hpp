#pragma once
#include "kernels/quantize/draws.hpp"

/// Full quantization of a patch by a team of threads, a block a thread: the device's counterpart of host_quantize.hpp.
/// Team is Row of launch.hpp, or anything with its each() and max().
namespace tessera::quantizer::team {

using formats::Encoding;
using formats::Format;
using formats::TensorScale;

/// Owned rows of the member, clipped to the patch.
TESSERA_FN inline std::int64_t owned_begin(const Descriptor& d, const Patch& p) {
  return clamp_to(p.low / d.matrix.columns, p.row, p.row + p.rows);
}
TESSERA_FN inline std::int64_t owned_end(const Descriptor& d, const Patch& p) {
  return clamp_to(p.high / d.matrix.columns, p.row, p.row + p.rows);
}

/// A block, in rows and columns of the patch.
struct Area {
  std::int64_t i, j;  ///< in the member's grid of blocks
  int row, row_end, column, column_end;
};

template <Format F, Side side>
struct Blocks {
  static constexpr formats::Block block = formats::block_of<F>(side);
  static constexpr int across = patch_edge / block.columns;
  static constexpr int count = patch_edge / block.rows * across;

  TESSERA_FN static Area area(const Patch& p, std::int64_t q) {
    const int i = static_cast<int>(q / across), j = static_cast<int>(q % across);
    const int row_end = (i + 1) * block.rows, column_end = (j + 1) * block.columns;
    return {p.row / block.rows + i, p.column / block.columns + j,
            i * block.rows,         row_end < p.rows ? row_end : p.rows,
            j * block.columns,      column_end < p.columns ? column_end : p.columns};
  }
  TESSERA_FN static bool held(const Descriptor& d, const Patch& p, const Area& a) {
    return a.column < a.column_end && p.row + a.row >= owned_begin(d, p) && p.row + a.row < owned_end(d, p);
  }
};

template <Format F, Side side>
TESSERA_FN void store_scale(const Descriptor& d, const Patch& p, const Area& a, typename F::Scale scale) {
  auto* out = static_cast<typename F::Scale*>(d.side[static_cast<int>(side)].scales);
  if (out == nullptr) return;
  const formats::ScaleLayout layout = F::scale_layout(side);
  const Matrix padded = formats::padded_extent<F>(side, d.matrix);
  out += p.member * padded.elements();
  for (int i = 0; i < layout.repeat.rows; ++i)
    for (int j = 0; j < layout.repeat.columns; ++j)
      out[scale_place<F>(side, padded, a.i * layout.repeat.rows + i, a.j * layout.repeat.columns + j)] = scale;
}

template <Format F>
TESSERA_FN void store_square_scale(const Descriptor& d, const Patch& p, const Area& a, typename F::Scale scale) {
  if (d.block_scales == nullptr) {
    store_scale<F, Side::rowwise>(d, p, a, scale);
    store_scale<F, Side::columnwise>(d, p, a, scale);
  } else {
    const Matrix all = formats::blocks<F>(Side::rowwise, d.matrix);
    static_cast<typename F::Scale*>(d.block_scales)[p.member * all.elements() + a.i * all.columns + a.j] = scale;
  }
}

/// Zeroes the patch's padding: right of the matrix beside owned rows, below it where the last row is owned.
template <Format F, Side side, class Team>
TESSERA_FN void store_padding(const Team& team, const Descriptor& d, const Patch& p) {
  auto* out = static_cast<typename F::Scale*>(d.side[static_cast<int>(side)].scales);
  if (out == nullptr || d.block_scales != nullptr) return;
  const formats::ScaleLayout layout = F::scale_layout(side);
  const Matrix padded = formats::padded_extent<F>(side, d.matrix);
  const Matrix valid = formats::in_order(layout.order, formats::scale_extent<F>(side, d.matrix));
  const ScaleSpan span = scale_span<F>(side, d, p);
  const std::int64_t width = span.column_end - span.column, rows_per_entry = formats::block_of<F>(side).rows;
  out += p.member * padded.elements();
  team.each((span.row_end - span.row) * width, [&](std::int64_t q) {
    const std::int64_t a = span.row + q / width, b = span.column + q % width;
    const std::int64_t row = a / layout.repeat.rows * rows_per_entry;
    const bool below = a >= valid.rows;
    const bool mine = below ? p.high == d.matrix.elements() : row >= owned_begin(d, p) && row < owned_end(d, p);
    if (mine && (below || b >= valid.columns)) out[scale_place<F>(side, padded, a, b)] = typename F::Scale{0};
  });
}

/// Codes of an area, rowwise or transposed; code(r, c) gives one. Two share a byte where they are nibbles.
template <Format F, class Code>
TESSERA_FN void store_rowwise(const Descriptor& d, const Patch& p, const Area& a, Side side, const Code& code) {
  std::byte* data = d.side[static_cast<int>(side)].data;
  for (int r = a.row; r < a.row_end; ++r) {
    const std::int64_t first = p.member * d.stride + (p.row + r) * d.matrix.columns + p.column;
    if constexpr (F::Element::bits == 4) {
      for (int c = a.column; c < a.column_end; c += 2)
        data[(first + c) / 2] = static_cast<std::byte>(code(r, c) | code(r, c + 1) << 4);
    } else {
      auto* out = reinterpret_cast<typename F::Element::Storage*>(data);
      for (int c = a.column; c < a.column_end; ++c)
        out[first + c] = static_cast<typename F::Element::Storage>(code(r, c));
    }
  }
}
template <Format F, class Code>
TESSERA_FN void store_transposed(const Descriptor& d, const Patch& p, const Area& a, const Code& code) {
  for (int c = a.column; c < a.column_end; ++c) {
    const std::int64_t first = p.member * d.stride + (p.column + c) * d.matrix.rows + p.row;
    if constexpr (F::Element::bits == 4) {
      for (int r = a.row; r < a.row_end; r += 2)
        d.side[1].data[(first + r) / 2] = static_cast<std::byte>(code(r, c) | code(r + 1, c) << 4);
    } else {
      for (int r = a.row; r < a.row_end; ++r) d.side[1].data[first + r] = static_cast<std::byte>(code(r, c));
    }
  }
}

template <Format F, class M>
TESSERA_FN std::uint32_t encode(float scaled, const Descriptor& d, const Patch& p, int r, int c, Side side) {
  if constexpr (F::hadamard && M::purpose == Purpose::gradient) {
    const std::uint64_t index = draw_index(d, p, r) + static_cast<std::uint64_t>(c);
    return formats::e2m1_stochastic(scaled, byte_of(draw_block(d.keys[static_cast<int>(side)], index / 16), index));
  } else {
    return F::Element::encode(scaled);
  }
}

template <class X>
TESSERA_FN std::uint32_t largest_in(const X& x, const Area& a) {
  std::uint32_t top = 0;
  for (int r = a.row; r < a.row_end; ++r)
    for (int c = a.column; c < a.column_end; ++c) top = larger(top, magnitude(x(r, c)));
  return top;
}

/// Calls f(x, area) with x(r, c) the area's values: the source, or sixteen of a column rotated.
template <Format F, Side side, class M, class Use>
TESSERA_FN void with_values(const SourcePatch<typename M::Source>& source, const Area& a, const Use& use) {
  if constexpr (F::hadamard && side == Side::columnwise && M::purpose != Purpose::weight) {
    float y[hadamard_block];
    for (int r = 0; r < hadamard_block; ++r) {
      const float v = source.row(a.row + r)(a.column);
      y[r] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(v) ^ (hadamard_signs >> r & 1u) << 31);
    }
    for (int stride = 1; stride < hadamard_block; stride *= 2)
      for (int r = 0; r < hadamard_block; ++r) {
        if (r & stride) continue;
        const float u = y[r], v = y[r + stride];
        y[r] = u + v;
        y[r + stride] = u - v;
      }
    use([&](int r, int) { return y[r - a.row] * 0.25f; });
  } else {
    use([&](int r, int c) { return source.row(r)(c); });
  }
}

/// Blocks along one direction, a thread each.
template <Format F, Side side, class M, class Team>
TESSERA_FN void quantize_blocks(const Team& team, const Descriptor& d, const Patch& p, const TensorScale& tensor) {
  const SourcePatch<typename M::Source> source(d, p);
  team.each(Blocks<F, side>::count, [&](std::int64_t q) {
    const Area a = Blocks<F, side>::area(p, q);
    if (!Blocks<F, side>::held(d, p, a)) return;
    with_values<F, side, M>(source, a, [&](const auto& x) {
      const auto encoding = F::encoding(largest_of(largest_in(x, a)), tensor);
      store_scale<F, side>(d, p, a, encoding.scale);
      const auto code = [&](int r, int c) { return encode<F, M>(x(r, c) * encoding.multiplier, d, p, r, c, side); };
      if constexpr (formats::order_of<F>(side) == formats::Order::transposed)
        store_transposed<F>(d, p, a, code);
      else
        store_rowwise<F>(d, p, a, side, code);
    });
  });
  store_padding<F, side>(team, d, p);
}

/// Square tiles: a thread each, or, where a tile fills the patch, all threads.
template <Format F, class M, class Team>
TESSERA_FN void quantize_tiles(const Team& team, const Descriptor& d, const Patch& p, const TensorScale& tensor) {
  using B = Blocks<F, Side::rowwise>;
  constexpr bool turned = F::columnwise == formats::Columnwise::transposed;
  const SourcePatch<typename M::Source> source(d, p);
  const auto x = [&](int r, int c) { return source.row(r)(c); };
  if constexpr (B::count == 1) {
    const Area a = B::area(p, 0);
    if (B::held(d, p, a)) {
      const auto top = team.template max<std::uint32_t>(std::int64_t{p.rows} * p.columns, [&](std::int64_t q) {
        return magnitude(x(static_cast<int>(q / p.columns), static_cast<int>(q % p.columns)));
      });
      const auto encoding = F::encoding(largest_of(top), tensor);
      const auto code = [&](int r, int c) { return F::Element::encode(x(r, c) * encoding.multiplier); };
      team.each(p.rows, [&](std::int64_t q) {
        const int r = static_cast<int>(q);
        if (q == 0) store_square_scale<F>(d, p, a, encoding.scale);
        if (d.side[0].data) store_rowwise<F>(d, p, {a.i, a.j, r, r + 1, 0, p.columns}, Side::rowwise, code);
      });
      if (turned && d.side[1].data)
        team.each(p.columns, [&](std::int64_t q) {
          const int c = static_cast<int>(q);
          store_transposed<F>(d, p, {a.i, a.j, 0, p.rows, c, c + 1}, code);
        });
    }
  } else {
    team.each(B::count, [&](std::int64_t q) {
      const Area a = B::area(p, q);
      if (!B::held(d, p, a)) return;
      const auto encoding = F::encoding(largest_of(largest_in(x, a)), tensor);
      const auto code = [&](int r, int c) { return F::Element::encode(x(r, c) * encoding.multiplier); };
      store_square_scale<F>(d, p, a, encoding.scale);
      if (d.side[0].data) store_rowwise<F>(d, p, a, Side::rowwise, code);
      if (turned && d.side[1].data) store_transposed<F>(d, p, a, code);
    });
  }
  store_padding<F, Side::rowwise>(team, d, p);
  store_padding<F, Side::columnwise>(team, d, p);
}

template <Format F, class M, class Team>
TESSERA_FN void quantize_patch(const Team& team, const Descriptor& d, const Patch& p) {
  if constexpr (!F::scaled) {
    const SourcePatch<typename M::Source> source(d, p);
    team.each(p.rows, [&](std::int64_t q) {
      const int r = static_cast<int>(q);
      if (p.row + r < owned_begin(d, p) || p.row + r >= owned_end(d, p)) return;
      store_rowwise<F>(d, p, {0, 0, r, r + 1, 0, p.columns}, Side::rowwise,
                       [&](int, int c) { return F::Element::encode(source.row(r)(c)); });
    });
  } else {
    TensorScale tensor[2];
    for (int s = 0; s < 2; ++s)
      if (d.side[s].amax) tensor[s] = F::tensor_scale(d.side[s].amax[p.member]);
    if constexpr (F::block.rows == F::block.columns) {
      quantize_tiles<F, M>(team, d, p, d.side[0].amax ? tensor[0] : tensor[1]);
    } else {
      if (d.side[0].data) quantize_blocks<F, Side::rowwise, M>(team, d, p, tensor[0]);
      if (d.side[1].data) quantize_blocks<F, Side::columnwise, M>(team, d, p, tensor[1]);
    }
  }
}

/// Largest magnitude among the owned elements of a patch, as either copy sees them.
template <Format F, class M, class Team>
TESSERA_FN float largest(const Team& team, const Descriptor& d, const Patch& p, Side side) {
  const SourcePatch<typename M::Source> source(d, p);
  const std::int64_t begin = owned_begin(d, p), end = owned_end(d, p);
  if (side == Side::rowwise)
    return largest_of(team.template max<std::uint32_t>(std::int64_t{p.rows} * p.columns, [&](std::int64_t q) {
      const std::int64_t r = q / p.columns;
      return p.row + r >= begin && p.row + r < end ? magnitude(source.row(r)(q % p.columns)) : 0u;
    }));
  using B = Blocks<F, Side::columnwise>;
  return largest_of(team.template max<std::uint32_t>(B::count, [&](std::int64_t q) {
    const Area a = B::area(p, q);
    std::uint32_t top = 0;
    if (B::held(d, p, a))
      with_values<F, Side::columnwise, M>(source, a, [&](const auto& x) { top = largest_in(x, a); });
    return top;
  }));
}

}  // namespace tessera::quantizer::team
