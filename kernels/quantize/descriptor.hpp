#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/formats/layout.hpp"

/// A quantization table as kernels read it: plain data in device memory.
namespace tessera::quantizer {

using formats::Matrix;

/// Edge of a patch, the unit of work: 128 x 128 elements, a multiple of every format's block, which fit a cache.
inline constexpr int patch_edge = 128;

/// Size of the area that one block of threads works on: a patch, or several where a GPU is faster so.
struct Area {
  int rows, columns;
  constexpr bool operator==(const Area&) const = default;
};
inline constexpr Area one_patch{patch_edge, patch_edge};

/// The area whose scales fill whole sectors (32 bytes) of a format's scale arrays, along rows, and along columns if an
/// array is transposed. A GPU writes whole sectors, even for smaller stores.
constexpr Area scale_area(const formats::Geometry& format) {
  constexpr int sector = 32;
  const int entries = sector / format.scale_bytes;
  const bool down = format.scale_layout(Side::columnwise).order == formats::Order::transposed;
  const int run = entries * format.block.columns, edge = run > patch_edge ? run : patch_edge;
  return {format.scaled && down ? edge : patch_edge, format.scaled ? edge : patch_edge};
}
template <formats::Format F>
constexpr Area scale_area() {
  return scale_area(formats::geometry_of<F>());
}

/// The area that a block of threads transposes: sixteen rows of eight bytes for each of 128 or 256 device threads. So
/// the lines of both copies are as long as a cache line.
constexpr Area turned_area(const formats::Geometry& format) { return {1024 / format.bits, 1024 / format.bits}; }
template <formats::Format F>
constexpr Area turned_area() {
  return turned_area(formats::geometry_of<F>());
}

struct Addresses {
  std::byte* data;
  void* scales;
  float* amax;
  std::uint8_t* swizzled;
};

/// Whether rows are aligned to one device thread's vector accesses. That is eight values, eight bytes of the rowwise
/// copy, sixteen elements of a line of the transposed copy.
struct Alignment {
  bool values, rowwise, columnwise;
};

/// Whether the quantizers of a format read values once, in blocks as wide as a patch. They compute gelus and column
/// sums on the way.
template <formats::Format F>
inline constexpr bool one_pass = F::block == formats::Block{1, patch_edge} && !F::hadamard && !F::tensor_amax;

struct Descriptor {
  Matrix matrix;
  std::int64_t members, stride;
  std::byte* values;                         ///< address of the value at position `begin`
  std::int64_t begin, end;                   ///< owned positions
  Matrix patches;                            ///< patches of one member, down and across
  std::int64_t first_patch_row, patch_rows;  ///< range of patch rows, over all members, that have an owned element
  std::int64_t first_task;                   ///< index of its first owned patch in TableView::owned
  std::int64_t first_block, first_member;    ///< first indices in the amax buffer's two parts
  Addresses side[2];
  void* block_scales;
  std::uint64_t seed, draws[2];  ///< of random numbers: the run's seed, and each side's name hash
  const std::uint64_t* step;
  std::int64_t first_row;
  const std::int64_t* rows;
  const std::int32_t* rows_end;  ///< where the rows in use end; null: all are
  std::uint64_t* not_finite;  ///< set to 1 if a value is NaN or infinite; null: not checked
  const std::uint16_t* pre;   ///< input of a gelu whose gradient is quantized, of the shape of the values, which are dy
  float* column_sums;         ///< of each 128 rows of what is quantized; null: not computed
  Alignment aligned;
};

/// A unit of work: a patch, or the first patch of an area, by its row and column in the member's grid of patches; or a
/// member (patch 0, 0). Listed once, on the host.
struct Task {
  std::int32_t entry, member, row, column;
};

/// A list of tasks: an array in device memory, or all areas of one matrix, computed from their number.
struct Units {
  const Task* tasks = nullptr;  ///< null: computed
  std::int64_t count = 0;
  std::int32_t down = 1, across = 1;   ///< areas of a member
  std::int32_t rows = 1, columns = 1;  ///< patches of an area

  TESSERA_FN Task operator[](std::int64_t i) const {
    if (tasks != nullptr) return tasks[i];
    const auto unit = static_cast<std::int32_t>(i), of_member = down * across, place = unit % of_member;
    return {0, unit / of_member, place / across * rows, place % across * columns};
  }
};

struct TableView {
  const Descriptor* items = nullptr;  ///< null: only `one`
  Units owned;                        ///< patches with an owned element; those of a member are neighbours
  Units all;                          ///< all patches
  Units members;                      ///< all members
  Units owned_groups;                 ///< areas of scale_area() with an owned element
  Units all_groups;                   ///< all such areas
  Units turned;                       ///< all areas of turned_area(), down the columns first
  float* largest[2] = {};             ///< scratch, one per owned patch and side
  Descriptor one = {};

  TESSERA_FN const Descriptor& operator[](const Task& task) const { return items != nullptr ? items[task.entry] : one; }
};

/// What a GPU writes all scales by: areas of scale_area(), or members where a tensor's scale is the only one.
template <formats::Format F>
TESSERA_FN const Units& scale_units(const TableView& table) {
  return F::scaled ? table.all_groups : table.members;
}

/// Copies of several matrices of one shape in separate memory; passed with a launch.
struct Apart {
  static constexpr int most = 64;
  Addresses at[most];
};
/// Descriptor of the matrix of `task`, as member 0, among matrices whose first is `first` and whose values are
/// contiguous.
TESSERA_FN inline Descriptor member_apart(const Descriptor& first, const Apart& copies, Side side, const Task& task) {
  Descriptor d = first;
  d.side[static_cast<int>(side)] = copies.at[task.member];
  d.values += task.member * first.matrix.elements() * static_cast<std::int64_t>(sizeof(bf16));
  return d;
}

/// A patch, clipped to its matrix. Rows and columns are those of the member.
struct Patch {
  std::int64_t member, row, column;
  int rows, columns;
  std::int64_t low, high;  ///< owned positions of the member, relative to it

  /// Columns of `r` (relative to the patch) that are owned: [first_owned, end_owned).
  TESSERA_FN int first_owned(int r, std::int64_t width) const { return clip(low - (row + r) * width - column); }
  TESSERA_FN int end_owned(int r, std::int64_t width) const { return clip(high - (row + r) * width - column); }

 private:
  TESSERA_FN int clip(std::int64_t c) const { return static_cast<int>(c < 0 ? 0 : c > columns ? columns : c); }
};

TESSERA_FN inline std::int64_t clamp_to(std::int64_t x, std::int64_t low, std::int64_t high) {
  return x < low ? low : x > high ? high : x;
}

/// Number of a member's rows that are read and written.
TESSERA_FN inline std::int64_t rows_in_use(const Descriptor& d) {
  if (d.rows_end == nullptr) return d.matrix.rows;
  return clamp_to(*d.rows_end, 0, d.matrix.rows);  // mutation: rows_behind_the_end
}

/// The area whose first element is (row, column) of the member; empty if that is outside, or behind the rows in use.
TESSERA_FN inline Patch area_at(const Descriptor& d, std::int64_t member, std::int64_t row, std::int64_t column,
                                Area area) {
  Patch p;
  p.member = member;
  p.row = row;
  p.column = column;
  const std::int64_t rows = rows_in_use(d);
  p.rows = static_cast<int>(clamp_to(rows - row, 0, area.rows));
  p.columns = static_cast<int>(clamp_to(d.matrix.columns - column, 0, area.columns));
  p.low = clamp_to(d.begin - p.member * d.stride, 0, d.matrix.elements());
  p.high = clamp_to(d.end - p.member * d.stride, 0, rows * d.matrix.columns);
  return p;
}
TESSERA_FN inline Patch patch_of(const Descriptor& d, const Task& task, Area area = one_patch) {
  return area_at(d, task.member, std::int64_t{task.row} * patch_edge, std::int64_t{task.column} * patch_edge, area);
}

/// Index in a copy's amaxes of that of element (row, column) of a patch: its member's, or by lines its line's.
template <formats::Format F>
TESSERA_FN constexpr std::int64_t amax_place(Side side, const Descriptor& d, const Patch& p, std::int64_t row,
                                             std::int64_t column) {
  if constexpr (!formats::by_lines<F>) return p.member;
  return side == Side::rowwise ? p.member * d.matrix.rows + p.row + row  // mutation: rows_of_the_first_patch
                               : p.member * d.matrix.columns + p.column + column;
}
/// The amax itself; 0 of formats without.
template <formats::Format F>
TESSERA_FN inline float amax_at(Side side, const Descriptor& d, const Patch& p, std::int64_t row, std::int64_t column) {
  const float* const amaxes = d.side[static_cast<int>(side)].amax;
  return amaxes != nullptr ? amaxes[amax_place<F>(side, d, p, row, column)] : 0.0f;
}

/// Range of a member's owned patches in TableView::largest.
struct UnitRange {
  std::int64_t begin, end;
};
TESSERA_FN inline UnitRange owned_patches(const Descriptor& d, std::int64_t member) {
  const std::int64_t begin = clamp_to(member * d.patches.rows - d.first_patch_row, 0, d.patch_rows);
  const std::int64_t end = clamp_to((member + 1) * d.patches.rows - d.first_patch_row, 0, d.patch_rows);
  return {d.first_task + begin * d.patches.columns, d.first_task + end * d.patches.columns};
}

/// Entries of a scale array that a patch or area writes: [row, row_end) x [column, column_end), in rows and columns of
/// blocks repeated by the layout. The last patches write the padding too.
struct ScaleSpan {
  std::int64_t row, row_end, column, column_end;
};

template <formats::Format F, Area area = one_patch>
TESSERA_FN constexpr ScaleSpan scale_span(Side side, const Descriptor& d, const Patch& p) {
  const formats::Block b = formats::block_of<F>(side);
  const formats::ScaleLayout layout = F::scale_layout(side);
  const Matrix padded = formats::in_order(layout.order, formats::padded_extent<F>(side, d.matrix));
  const std::int64_t down = area.rows / b.rows * layout.repeat.rows,
                     across = area.columns / b.columns * layout.repeat.columns;
  const std::int64_t row = p.row / area.rows * down, column = p.column / area.columns * across;
  return {row, p.row + area.rows >= d.matrix.rows ? padded.rows : row + down, column,
          p.column + area.columns >= d.matrix.columns ? padded.columns : column + across};
}

/// Index in the member's scale array of entry (row, column) of a span.
template <formats::Format F>
TESSERA_FN constexpr std::int64_t scale_place(Side side, Matrix padded, std::int64_t row, std::int64_t column) {
  return F::scale_layout(side).order == formats::Order::as_source ? row * padded.columns + column
                                                                  : column * padded.columns + row;
}

}  // namespace tessera::quantizer
