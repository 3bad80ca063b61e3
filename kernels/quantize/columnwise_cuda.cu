#include "kernels/quantize/back.hpp"
#include "kernels/quantize/codes.cuh"
#include "kernels/quantize/scales.cuh"

namespace tessera::quantizer {
namespace device {
namespace {

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

/// A patch's data, which may be ragged.
template <Format F>
__device__ void turn_data(const Descriptor& d, const Patch& p, std::byte* shared) {
  using Element = typename F::Element;
  const Seat seat;
  const std::byte* from = row_of<F>(d, p, Side::rowwise, seat);
  std::byte* out = d.side[1].data + formats::data_bytes<F>(turned_origin_of(d, p));
  const Turned<Element> codes(shared);
  const bool vectors = d.aligned.rowwise && d.aligned.columnwise,
             whole = vectors && p.rows == patch_edge && p.columns == patch_edge;
  const std::int64_t step = formats::data_bytes<F>(d.matrix.columns);
  Run<Element> rows[height];
  if (whole)
    load_codes<Element>(from, step, seat, Whole(), rows);
  else
    load_codes<Element>(from, step, seat, Part{p, d.matrix.columns, vectors}, rows);
  codes.put(rows, seat);
  __syncthreads();
  if (whole)
    codes.store(out, d.matrix.rows);
  else
    codes.store(out, d.matrix.rows, p.columns, 0, p.rows);
}

/// Blocks of threads that move data, and those that write scales.
template <Format F>
__global__ void __launch_bounds__(threads, 8) columnwise_kernel(TableView table, Mixed mix) {
  __shared__ Descriptor descriptor;
  const unsigned unit = mix.place(blockIdx.x);
  if (!mix.of_scales(blockIdx.x)) {
    if constexpr (F::columnwise == formats::Columnwise::transposed) {
      __shared__ alignas(16) std::byte codes[Turned<typename F::Element>::bytes];
      const Task task = table.all[unit];
      const Descriptor& d = fetch(table, task, descriptor);
      Patch p = patch_of(d, task);
      p.low = 0;
      p.high = d.matrix.elements();
      if (d.side[1].data != nullptr) turn_data<F>(d, p, codes);
    }
    return;
  }
  constexpr Area area = scale_area<F>();
  __shared__ Grid<F, Side::rowwise, area> rowwise;
  __shared__ Grid<F, Side::columnwise, area> columnwise;
  const Task task = table.all_groups.tasks[unit];
  const Descriptor& d = fetch(table, task, descriptor);
  Patch p = patch_of(d, task, area);
  p.low = 0;
  p.high = d.matrix.elements();
  const OwnedRows all(0, p.rows);
  gather_scales(d, p, all, rowwise, columnwise);
  __syncthreads();
  if (d.block_scales != nullptr) store_scales(d, p, rowwise, all);
  store_scales(d, p, columnwise, all);
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
  __shared__ Descriptor descriptor;
  const Task task = table.all[blockIdx.x];
  const Descriptor& d = fetch(table, task, descriptor);
  const Patch p = patch_of(d, task);
  swizzle_patch<F, Side::rowwise>(d, p);
  swizzle_patch<F, Side::columnwise>(d, p);
}

}  // namespace
}  // namespace device

void derive_columnwise(Stream& stream, FormatId format, const TableView& table) {
  visit_format(format, [&]<class F>() {
    if constexpr (F::scaled && F::columnwise != formats::Columnwise::requantized) {
      const std::int64_t of_data = F::columnwise == formats::Columnwise::transposed ? table.all_units : 0,
                         of_scales = table.all_groups.count;
      device::start(stream, device::columnwise_kernel<F>, of_data + of_scales, table,
                    device::Mixed(of_data, of_scales));
    }
  });
}

void swizzle(Stream& stream, FormatId format, const TableView& table) {
  visit_format(format, [&]<class F>() {
    if constexpr (formats::swizzles<F>()) device::start(stream, device::swizzle_kernel<F>, table.all_units, table);
  });
}

}  // namespace tessera::quantizer
