#include "kernels/quantize/back.hpp"
#include "kernels/quantize/codes.cuh"
#include "kernels/quantize/scales.cuh"

namespace tessera::quantizer {
namespace device {
namespace {

/// Scales of the patch's blocks, from where they travelled or from the rowwise array.
template <Format F>
__device__ void gather_scales(const Descriptor& d, const Patch& p, Grid<F, Side::rowwise>& rowwise,
                              Grid<F, Side::columnwise>& columnwise) {
  using G = Grid<F, Side::rowwise>;
  using Scale = typename F::Scale;
  constexpr formats::Block repeat = G::layout.repeat;
  const Matrix all = formats::blocks<F>(Side::rowwise, d.matrix),
               padded = formats::padded_extent<F>(Side::rowwise, d.matrix);
  const auto* travelled = static_cast<const Scale*>(d.block_scales) + p.member * all.elements();
  const auto* array = static_cast<const Scale*>(d.side[0].scales) + p.member * padded.elements();
  for (int q = static_cast<int>(threadIdx.x); q < G::rows * G::columns; q += threads) {
    const std::int64_t i = p.row / G::block.rows + q / G::columns, j = p.column / G::block.columns + q % G::columns;
    if (i >= all.rows || j >= all.columns) continue;
    const Scale scale = d.block_scales
                            ? travelled[i * all.columns + j]
                            : array[scale_place<F>(Side::rowwise, padded, i * repeat.rows, j * repeat.columns)];
    rowwise.at(q / G::columns, q % G::columns) = scale;
    columnwise.at(q / G::columns, q % G::columns) = scale;
  }
}

/// Sixteen rows of codes, the first at `from`; zero where there is nothing.
template <class Element, class Extent>
__device__ void load_codes(const std::byte* from, std::int64_t row_bytes, const Seat& seat, const Extent& extent,
                           Run<Element> (&codes)[height]) {
#pragma unroll
  for (int r = 0; r < height; ++r) {
    const std::byte* row = from + r * row_bytes;
    if constexpr (Extent::all) {
      codes[r] = load_run<Element>(row);
    } else {
      const int n = extent.end(seat.row + r) - seat.column;
      codes[r] = extent.vectors && n >= run ? load_run<Element>(row) : load_some<Element>(row, n);
    }
  }
}

template <Format F>
__global__ void __launch_bounds__(threads, 8) columnwise_kernel(TableView table) {
  constexpr bool turns = F::columnwise == formats::Columnwise::transposed;
  __shared__ Grid<F, Side::rowwise> rowwise;
  __shared__ Grid<F, Side::columnwise> columnwise;
  __shared__ alignas(16) std::byte codes[turns ? Turned<typename F::Element>::bytes : 16];
  const Task task = table.all[blockIdx.x];
  const Descriptor& d = table.items[task.entry];
  Patch p = patch_of(d, task);
  p.low = 0;
  p.high = d.matrix.elements();
  const bool there = p.rows == patch_edge && p.columns == patch_edge,
             vectors = d.aligned.rowwise && d.aligned.columnwise;
  const bool moves = turns && d.side[1].data != nullptr, whole = moves && there && vectors;
  if constexpr (turns) {
    if (moves) {
      const Seat seat;
      const std::byte* from = row_of<F>(d, p, Side::rowwise, seat);
      const std::int64_t step = formats::data_bytes<F>(d.matrix.columns);
      Run<typename F::Element> rows[height];
      if (whole)
        load_codes<typename F::Element>(from, step, seat, Whole(), rows);
      else
        load_codes<typename F::Element>(from, step, seat, Part{p, d.matrix.columns, vectors}, rows);
      gather_scales<F>(d, p, rowwise, columnwise);
      Turned<typename F::Element>(codes).put(rows, seat);
    } else {
      gather_scales<F>(d, p, rowwise, columnwise);
    }
  } else {
    gather_scales<F>(d, p, rowwise, columnwise);
  }
  __syncthreads();
  if constexpr (turns) {
    std::byte* out = d.side[1].data + formats::data_bytes<F>(turned_origin_of(d, p));
    if (whole)
      Turned<typename F::Element>(codes).store(out, d.matrix.rows);
    else if (moves)
      Turned<typename F::Element>(codes).store(out, d.matrix.rows, p.columns, 0, p.rows);
  }
  if (d.block_scales != nullptr) store_scales<F, Side::rowwise>(d, p, rowwise, there);
  store_scales<F, Side::columnwise>(d, p, columnwise, there);
  if (F::tensor_amax && threadIdx.x == 0 && p.row == 0 && p.column == 0 && d.side[1].amax &&
      d.side[1].amax != d.side[0].amax)
    d.side[1].amax[p.member] = d.side[0].amax[p.member];
}

/// Four entries that a block-scaled GEMM reads together. Rows of the scale matrix run along the blocks' long side: that
/// of MXFP8's columnwise copy is the array transposed.
template <Format F, Side side>
__device__ void swizzle_patch(const Descriptor& d, const Patch& p) {
  const Place& copy = d.side[static_cast<int>(side)];
  if (copy.swizzled == nullptr || copy.scales == nullptr) return;
  constexpr bool turned = side == Side::columnwise;
  const ScaleSpan span = scale_span<F>(side, d, p);
  const Matrix padded = formats::padded_extent<F>(side, d.matrix),
               grid = formats::in_order(F::scale_layout(side).order, padded);
  const auto* in = static_cast<const std::uint8_t*>(copy.scales) + p.member * padded.elements();
  std::uint8_t* out = copy.swizzled + p.member * padded.elements();
  const std::int64_t row = turned ? span.column : span.row, column = turned ? span.row : span.column;
  const int rows = static_cast<int>((turned ? span.column_end : span.row_end) - row);
  const int fours = static_cast<int>((turned ? span.row_end : span.column_end) - column) / 4;
  for (int q = static_cast<int>(threadIdx.x); q < rows * fours; q += threads) {
    const std::int64_t a = row + q / fours, b = column + q % fours * 4;
    std::uint8_t* to = out + formats::swizzled(a, b, turned ? grid.rows : grid.columns);
#pragma unroll
    for (int k = 0; k < 4; ++k)
      to[k] = in[turned ? scale_place<F>(side, padded, b + k, a) : scale_place<F>(side, padded, a, b + k)];
  }
}

template <Format F>
__global__ void __launch_bounds__(threads) swizzle_kernel(TableView table) {
  const Task task = table.all[blockIdx.x];
  const Descriptor& d = table.items[task.entry];
  const Patch p = patch_of(d, task);
  swizzle_patch<F, Side::rowwise>(d, p);
  swizzle_patch<F, Side::columnwise>(d, p);
}

}  // namespace
}  // namespace device

void derive_columnwise(Stream& stream, FormatId format, const TableView& table) {
  visit_format(format, [&]<class F>() {
    if constexpr (F::scaled && F::columnwise != formats::Columnwise::requantized)
      device::start(stream, device::columnwise_kernel<F>, table.all_units, table);
  });
}

void swizzle(Stream& stream, FormatId format, const TableView& table) {
  visit_format(format, [&]<class F>() {
    if constexpr (formats::swizzles<F>()) device::start(stream, device::swizzle_kernel<F>, table.all_units, table);
  });
}

}  // namespace tessera::quantizer
