#pragma once
#include "kernels/quantize/codes.cuh"

/// Device code: a patch's scales, gathered in shared memory and stored in the arrays.
namespace tessera::quantizer::device {

using formats::Order;

/// Scales of the blocks of an area, in the order of their array but without its repetitions; 0 outside the matrix.
template <Format F, Side side, Area area = one_patch>
struct Grid {
  using Scale = typename F::Scale;
  static constexpr formats::Block block = formats::block_of<F>(side);
  static constexpr formats::ScaleLayout layout = F::scale_layout(side);
  static constexpr bool turned = layout.order == Order::transposed;
  static constexpr int rows = area.rows / block.rows, columns = area.columns / block.columns;
  /// The area's extent in the array: `lines` lines of `length` neighbouring entries.
  static constexpr int lines = turned ? columns * layout.repeat.columns : rows * layout.repeat.rows;
  static constexpr int length = turned ? rows * layout.repeat.rows : columns * layout.repeat.columns;
  static constexpr int line_repeat = turned ? layout.repeat.columns : layout.repeat.rows;
  static constexpr int entry_repeat = turned ? layout.repeat.rows : layout.repeat.columns;
  static constexpr int in_line = length / entry_repeat;

  alignas(16) Scale scale[rows * columns];

  /// The scale of block (i, j) of the area.
  __device__ Scale& at(int i, int j) { return scale[turned ? j * rows + i : i * columns + j]; }
  __device__ Scale at(int i, int j) const { return scale[turned ? j * rows + i : i * columns + j]; }
};

/// Whether the multiplier of a block follows from the tensor's scale and the block's stored one.
template <Format F>
inline constexpr bool follows_scale = requires(float amax, formats::TensorScale tensor) {
  F::multiplier(std::uint32_t{}, tensor);
  F::wanted_scale(amax, tensor);
};

/// The scale of the line, or tensor, of element (row, column) of a patch whose member's is `tensor`; that of no amax
/// outside the matrix.
template <Format F>
__device__ formats::TensorScale line_scale(Side side, const Descriptor& d, const Patch& p, int row, int column,
                                           const formats::TensorScale& tensor) {
  if constexpr (!formats::by_lines<F>) return tensor;
  const bool inside = side == Side::rowwise ? row < p.rows : column < p.columns;
  return F::tensor_scale(inside ? amax_at<F>(side, d, p, row, column) : 0.0f);
}
/// The scale of a member's copy; none by lines.
template <Format F>
__device__ formats::TensorScale member_scale(Side side, const Descriptor& d, const Patch& p) {
  if (formats::by_lines<F> || d.side[static_cast<int>(side)].amax == nullptr) return {};
  return F::tensor_scale(amax_at<F>(side, d, p, 0, 0));
}

/// Encodings of blocks, as F::encoding() finds them. Where multipliers follow from stored scales, a table of those of
/// all scales is made first, since they take a division. By lines it has the scales' inverses, and serves all lines.
template <Format F>
class Encodings {
 public:
  struct Memory {
    float multiplier[follows_scale<F> ? 1 << (formats::E4M3::bits - 1) : 1];  // scales have no sign
  };
  __device__ Encodings(const formats::TensorScale& tensor, Memory& memory) : tensor_(tensor), memory_(memory) {}

  /// Makes the table. All threads call it and wait for one another before they read.
  __device__ void prepare() const {
    if constexpr (follows_scale<F>)
      for (unsigned code = threadIdx.x; code < std::size(memory_.multiplier); code += blockDim.x)
        if constexpr (formats::by_lines<F>)
          memory_.multiplier[code] = F::inverse_of(code);
        else
          memory_.multiplier[code] = F::multiplier(code, tensor_);
  }
  /// `line`: line_scale() of the block.
  __device__ formats::Encoding<typename F::Scale> operator()(std::uint32_t largest,
                                                             const formats::TensorScale& line) const {
    if constexpr (follows_scale<F>) {
      static_assert(std::is_same_v<typename F::ScaleElement, formats::E4M3>);
      const std::uint32_t code = e4m3_pair(F::wanted_scale(largest_of(largest), line), 0.0f);
      if constexpr (formats::by_lines<F>)
        return {static_cast<typename F::Scale>(code), F::moved(memory_.multiplier[code], line)};
      else
        return {static_cast<typename F::Scale>(code), memory_.multiplier[code]};
    } else {
      return F::encoding(largest_of(largest), line);
    }
  }
  /// F::other_encoding().
  __device__ formats::Encoding<typename F::Scale> other(std::uint32_t largest) const
    requires formats::chooses<F>
  {
    const float wanted = F::other_wanted(F::wanted_scale(largest_of(largest), tensor_));
    const std::uint32_t code = e4m3_pair(wanted, 0.0f);
    return {static_cast<typename F::Scale>(code), memory_.multiplier[code]};
  }

 private:
  const formats::TensorScale& tensor_;
  Memory& memory_;
};

/// The owned rows of an area; only whole rows are owned.
struct OwnedRows {
  int begin, end;
  __device__ OwnedRows(int first, int last) : begin(first), end(last) {}
  __device__ OwnedRows(const Descriptor& d, const Patch& p)
      : begin(static_cast<int>(clamp_to(p.low / d.matrix.columns - p.row, 0, p.rows))),
        end(static_cast<int>(clamp_to(p.high / d.matrix.columns - p.row, 0, p.rows))) {}
};

/// Stores the area's part of an array entry by entry, padding included. The owner of a row writes its entries; the
/// owner of the last row writes those below the matrix.
template <Format F, Side side, Area area>
__device__ void store_ragged_scales(const Descriptor& d, const Patch& p, const Grid<F, side, area>& grid,
                                    OwnedRows owned) {
  using G = Grid<F, side, area>;
  const Matrix padded = formats::padded_extent<F>(side, d.matrix);
  const Matrix valid = formats::in_order(G::layout.order, formats::scale_extent<F>(side, d.matrix));
  const ScaleSpan span = scale_span<F, area>(side, d, p);
  auto* out = static_cast<typename F::Scale*>(d.side[static_cast<int>(side)].scales) + p.member * padded.elements();
  const bool last = p.high == d.matrix.elements();
  const int width = static_cast<int>(span.column_end - span.column),
            count = static_cast<int>(span.row_end - span.row) * width;
  for (int q = static_cast<int>(threadIdx.x); q < count; q += static_cast<int>(blockDim.x)) {
    const int a = q / width, b = q % width, i = a / G::layout.repeat.rows, j = b / G::layout.repeat.columns;
    const bool below = span.row + a >= valid.rows, beside = span.column + b >= valid.columns;
    const int row = i * G::block.rows;
    if (below ? !last : row < owned.begin || row >= owned.end) continue;
    out[scale_place<F>(side, padded, span.row + a, span.column + b)] =
        below || beside ? typename F::Scale{0} : grid.at(i, j);
  }
}

/// An area's part of an array of bytes that is stored in whole words: `lines` of `length` entries, `pitch` apart. No
/// lines: store_ragged_scales() must be used. Finding the lines takes long; one thread does it while values are being
/// loaded.
struct ScaleLines {
  std::uint8_t* first;
  std::int64_t pitch;
  int lines, length;
};

/// Whether a patch has one entry for each of its threads, adjacent in the array.
template <Format F, Side side>
inline constexpr bool entry_a_thread =
    sizeof(typename F::Scale) == sizeof(float) && Grid<F, side>::lines == 1 && Grid<F, side>::length == threads;

template <Format F>
inline constexpr bool scales_by_entry = entry_a_thread<F, Side::rowwise>&& entry_a_thread<F, Side::columnwise>;

/// Stores the scales of a patch of whole rows without padding if entry_a_thread holds. All threads call it, after the
/// grid is complete.
template <Format F, Side side, class Extent>
__device__ void store_entry(const Descriptor& d, const Patch& p, const Grid<F, side>& grid, const Extent& extent) {
  if (side == Side::columnwise && static_cast<int>(threadIdx.x) >= extent.columns) return;
  const Matrix padded = formats::padded_extent<F>(side, d.matrix);
  const ScaleSpan span = scale_span<F>(side, d, p);
  auto* out = static_cast<typename F::Scale*>(d.side[static_cast<int>(side)].scales) + p.member * padded.elements();
  if (d.side[static_cast<int>(side)].scales != nullptr)
    out[scale_place<F>(side, padded, span.row, span.column) + threadIdx.x] = grid.scale[threadIdx.x];
}

/// Finds the lines: they exist if all rows are owned and the area holds all of their padding.
template <Format F, Side side, Area area>
__device__ ScaleLines lines_of(const Descriptor& d, const Patch& p, OwnedRows owned) {
  using G = Grid<F, side, area>;
  ScaleLines at{};
  auto* scales = static_cast<std::uint8_t*>(d.side[static_cast<int>(side)].scales);
  if (sizeof(typename F::Scale) > 1 || scales == nullptr || !aligned(scales, 4)) return at;
  const ScaleSpan span = scale_span<F, area>(side, d, p);
  const int rows = static_cast<int>(span.row_end - span.row), columns = static_cast<int>(span.column_end - span.column);
  if (rows > G::rows * G::layout.repeat.rows || columns > G::columns * G::layout.repeat.columns) return at;
  if (owned.begin > 0 || owned.end < p.rows) return at;
  const Matrix padded = formats::padded_extent<F>(side, d.matrix);
  at.first = scales + p.member * padded.elements() + scale_place<F>(side, padded, span.row, span.column);
  at.pitch = padded.columns;
  at.lines = G::turned ? columns : rows;
  at.length = G::turned ? rows : columns;
  return at;
}

/// Stores scales `entries` at a time, as whole words.
template <int entries, Format F, Side side, Area area>
__device__ void store_entries(const ScaleLines& at, const Grid<F, side, area>& grid, int line_repeat) {
  using G = Grid<F, side, area>;
  constexpr int a_line = G::length / entries;
  static_assert(G::length % entries == 0 && (G::entry_repeat == 1 || G::entry_repeat % entries == 0));
  for (int q = static_cast<int>(threadIdx.x); q < at.lines * a_line; q += static_cast<int>(blockDim.x)) {
    const int l = q / a_line, k = q % a_line * entries;
    if (k >= at.length) continue;
    const std::uint8_t* from = grid.scale + l / line_repeat * G::in_line + k / G::entry_repeat;
    std::uint32_t words[entries / 4];
    if constexpr (G::entry_repeat == 1)
      memcpy(words, __builtin_assume_aligned(from, entries), entries);
    else
      for (std::uint32_t& word : words) word = *from * 0x01010101u;
    store_once(at.first + l * at.pitch + k, words);
  }
}
template <Format F, Side side, Area area>
__device__ void store_lines(const ScaleLines& at, const Grid<F, side, area>& grid, int line_repeat) {
  constexpr int most = 16;
  if constexpr (Grid<F, side, area>::length % most == 0) {
    if ((reinterpret_cast<std::intptr_t>(at.first) | at.pitch | at.length) % most == 0)
      return store_entries<most>(at, grid, line_repeat);
  }
  store_entries<4>(at, grid, line_repeat);
}

/// Stores the scales of rows `owned`. All threads call it, after the grid is complete.
template <Format F, Side side, Area area>
__device__ void store_scales(const Descriptor& d, const Patch& p, const ScaleLines& at, const Grid<F, side, area>& grid,
                             OwnedRows owned) {
  if constexpr (F::scaled && sizeof(typename F::Scale) == 1) {
    if (at.lines > 0) return store_lines(at, grid, Grid<F, side, area>::line_repeat);
  }
  if (d.side[static_cast<int>(side)].scales != nullptr) store_ragged_scales(d, p, grid, owned);
}
template <Format F, Side side, Area area>
__device__ void store_scales(const Descriptor& d, const Patch& p, const Grid<F, side, area>& grid, OwnedRows owned) {
  store_scales(d, p, lines_of<F, side, area>(d, p, owned), grid, owned);
}

/// Stores one scale per block that begins in an owned row, in lines of `pitch` entries, `step` lines apart.
template <Format F, Area area>
__device__ void store_each_block(const Patch& p, const Grid<F, Side::rowwise, area>& grid, OwnedRows owned,
                                 typename F::Scale* out, std::int64_t pitch, int step) {
  using G = Grid<F, Side::rowwise, area>;
  for (int q = static_cast<int>(threadIdx.x); q < G::rows * G::columns; q += static_cast<int>(blockDim.x)) {
    const int i = q / G::columns, j = q % G::columns;
    if (i * G::block.rows >= owned.begin && i * G::block.rows < owned.end && j * G::block.columns < p.columns)
      out[(p.row / G::block.rows + i) * step * pitch + p.column / G::block.columns + j] = grid.at(i, j);
  }
}
/// Stores one scale per block in the compact array that travels.
template <Format F, Area area>
__device__ void store_block_scales(const Descriptor& d, const Patch& p, const Grid<F, Side::rowwise, area>& grid) {
  const Matrix all = formats::blocks<F>(Side::rowwise, d.matrix);
  store_each_block(p, grid, OwnedRows(d, p),
                   static_cast<typename F::Scale*>(d.block_scales) + p.member * all.elements(), all.columns, 1);
}

/// Whether one row of scales stands for several. Then a launch of its own repeats it, sector by sector.
template <Format F>
inline constexpr bool repeats_scales =
    F::scale_layout(Side::rowwise).repeat.rows > 1 && F::columnwise == formats::Columnwise::transposed;
template <Format F>
__device__ bool scales_follow(const Descriptor& d) {
  return repeats_scales<F> && d.block_scales == nullptr && d.side[0].scales != nullptr;
}

/// Finds where a patch's scales go: into the lines of both arrays, or, if a launch repeats them, into the first row of
/// each block.
template <Format F, Area area>
__device__ void find_lines(const Descriptor& d, const Patch& p, OwnedRows owned, ScaleLines (&at)[2]) {
  if (threadIdx.x == 0) {
    at[0] = lines_of<F, Side::rowwise, area>(d, p, owned);
    if (scales_follow<F>(d)) {
      at[0].lines = at[0].lines > 0 ? (p.rows + F::block.rows - 1) / F::block.rows : 0;
      at[0].pitch *= F::block.rows;
    }
  }
  if (threadIdx.x == 32) at[1] = lines_of<F, Side::columnwise, area>(d, p, owned);
}

/// Stores the scales of a square format where find_lines() says, or in the array that travels. Both its grids agree but
/// for order.
template <Format F, Area area>
__device__ void store_square_scales(const Descriptor& d, const Patch& p, const ScaleLines (&at)[2],
                                    const Grid<F, Side::rowwise, area>& rowwise,
                                    const Grid<F, Side::columnwise, area>& columnwise, OwnedRows owned) {
  if (d.block_scales != nullptr) return store_block_scales<F>(d, p, rowwise);
  if constexpr (repeats_scales<F>) {
    if (scales_follow<F>(d)) {
      if (at[0].lines > 0) return store_lines(at[0], rowwise, 1);
      const Matrix padded = formats::padded_extent<F>(Side::rowwise, d.matrix);
      auto* out = static_cast<typename F::Scale*>(d.side[0].scales) + p.member * padded.elements();
      return store_each_block(p, rowwise, owned, out, padded.columns, F::block.rows);
    }
  }
  store_scales(d, p, at[0], rowwise, owned);
  store_scales(d, p, at[1], columnwise, owned);
}

/// Reads both grids of an area, for owned rows. From the first row of each block in the rowwise array, or from the
/// array that travelled.
template <Format F, Area area>
__device__ void gather_scales(const Descriptor& d, const Patch& p, OwnedRows owned,
                              Grid<F, Side::rowwise, area>& rowwise, Grid<F, Side::columnwise, area>& columnwise) {
  using G = Grid<F, Side::rowwise, area>;
  using Scale = typename F::Scale;
  const Matrix all = formats::blocks<F>(Side::rowwise, d.matrix),
               padded = formats::padded_extent<F>(Side::rowwise, d.matrix);
  const auto* travelled = static_cast<const Scale*>(d.block_scales) + p.member * all.elements();
  const auto* array = static_cast<const Scale*>(d.side[0].scales) + p.member * padded.elements();
  for (int q = static_cast<int>(threadIdx.x); q < G::rows * G::columns; q += static_cast<int>(blockDim.x)) {
    const int a = q / G::columns, b = q % G::columns;
    const std::int64_t i = p.row / G::block.rows + a, j = p.column / G::block.columns + b;
    const bool there = a * G::block.rows >= owned.begin && a * G::block.rows < owned.end && j < all.columns;
    const auto at = [&] {
      return d.block_scales ? travelled[i * all.columns + j]
                            : array[scale_place<F>(Side::rowwise, padded, i * G::layout.repeat.rows,
                                                   j * G::layout.repeat.columns)];
    };
    rowwise.at(a, b) = columnwise.at(a, b) = there ? at() : Scale{0};
  }
}

}  // namespace tessera::quantizer::device
