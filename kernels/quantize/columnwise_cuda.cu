#include "kernels/quantize/back.hpp"
#include "kernels/quantize/codes.cuh"
#include "kernels/quantize/scales.cuh"

namespace tessera::quantizer {
namespace device {
namespace {

/// Runs per row that a transposing thread holds. It has sixteen rows of eight bytes: one run of bytes, or two of
/// nibbles.
template <Format F>
inline constexpr int runs = 64 / (run * F::Element::bits);
template <Format F>
inline constexpr int turning = threads_of(turned_area<F>()) / runs<F>;
template <Format F>
using Codes = Run<typename F::Element>[runs<F>][height];

template <Format F>
__device__ void load_codes(const std::byte* from, std::int64_t row_bytes, Codes<F>& codes) {
#pragma unroll
  for (int r = 0; r < height; ++r, from += row_bytes) {
    const uint2 v = load_once(reinterpret_cast<const uint2*>(from));
    if constexpr (runs<F> == 1)
      codes[0][r].word[0] = v.x, codes[0][r].word[1] = v.y;
    else
      codes[0][r].word[0] = v.x, codes[1][r].word[0] = v.y;
  }
}

/// Transposes all elements of an area, whoever owns them. `vectors`: a thread's part is aligned, and lies in the matrix
/// as a whole or not at all.
template <Format F, bool vectors>
__device__ void turn_data(const Descriptor& d, const Patch& p, std::byte* shared) {
  using Element = typename F::Element;
  constexpr int across = turned_area<F>().columns / (runs<F> * run);
  const int thread = static_cast<int>(threadIdx.x);
  const Seat seat(thread / across * height, thread % across * runs<F> * run);
  const std::byte* from = row_of<F>(d, p, Side::rowwise, seat);
  const std::int64_t step = formats::data_bytes<F>(d.matrix.columns);
  Codes<F> codes;
  if constexpr (vectors) {
    if (seat.row < p.rows && seat.column < p.columns) load_codes<F>(from, step, codes);
  } else {
#pragma unroll
    for (int k = 0; k < runs<F>; ++k)
#pragma unroll
      for (int r = 0; r < height; ++r)
        codes[k][r] = load_some<Element>(from + r * step + k * sizeof(Run<Element>),
                                         seat.row + r < p.rows ? p.columns - seat.column - k * run : 0);
  }
  const Turned<Element, turned_area<F>()> turned(shared);
#pragma unroll
  for (int k = 0; k < runs<F>; ++k) turned.put(codes[k], Seat(seat.row, seat.column + k * run));
  __syncthreads();
  std::byte* out = d.side[1].data + formats::data_bytes<F>(turned_origin_of(d, p));
  if constexpr (vectors)
    turned.template store<turning<F>>(out, d.matrix.rows, p.columns, p.rows);
  else
    turned.store_some(out, d.matrix.rows, p.columns, 0, p.rows);
}
/// Not inlined, so that the registers of this rare case do not count for the common one.
template <Format F>
__device__ __noinline__ void turn_misaligned(const Descriptor& d, const Task& task, std::byte* shared) {
  turn_data<F, false>(d, patch_of(d, task, turned_area<F>()), shared);
}

/// Writes all scales of an area.
template <Format F>
__device__ void turn_scales(const Descriptor& d, const Task& task) {
  constexpr Area area = scale_area<F>();
  Patch p = patch_of(d, task, area);
  if constexpr (F::scaled) {
    __shared__ Grid<F, Side::rowwise, area> rowwise;
    __shared__ Grid<F, Side::columnwise, area> columnwise;
    p.low = 0;
    p.high = d.matrix.elements();
    const OwnedRows all(0, p.rows);
    gather_scales(d, p, all, rowwise, columnwise);
    __syncthreads();
    if (d.block_scales != nullptr) store_scales(d, p, rowwise, all);
    store_scales(d, p, columnwise, all);
  }
  if (F::tensor_amax && threadIdx.x == 0 && p.row == 0 && p.column == 0 && d.side[1].amax &&
      d.side[1].amax != d.side[0].amax)
    d.side[1].amax[p.member] = d.side[0].amax[p.member];
}

/// Some blocks of threads transpose data, the others write scales.
template <Format F>
__global__ void __launch_bounds__(turning<F>, 1024 / turning<F>)
    columnwise_kernel(const __grid_constant__ TableView table, Mixed mix) {
  __shared__ Descriptor descriptor;
  const unsigned unit = mix.place(blockIdx.x);
  if (mix.of_scales(blockIdx.x)) {
    const Task task = scale_units<F>(table)[unit];
    return turn_scales<F>(fetch(table, task, descriptor), task);
  }
  if constexpr (F::columnwise == formats::Columnwise::transposed) {
    __shared__ alignas(16) std::byte codes[Turned<typename F::Element, turned_area<F>()>::bytes];
    const Task task = table.turned[unit];
    const Descriptor& d = fetch(table, task, descriptor);
    if (d.side[1].data == nullptr) return;
    if (d.aligned.rowwise && d.aligned.columnwise)
      turn_data<F, true>(d, patch_of(d, task, turned_area<F>()), codes);
    else
      turn_misaligned<F>(d, task, codes);
  }
}

/// Swizzles four entries that a block-scaled GEMM reads together. Rows of its scale matrix run along the long side of
/// blocks; for MXFP8's columnwise copy that matrix is the transposed array.
template <Format F, Side side>
__device__ void swizzle_patch(const Descriptor& d, const Patch& p) {
  const Addresses& copy = d.side[static_cast<int>(side)];
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
__global__ void __launch_bounds__(threads) swizzle_kernel(const __grid_constant__ TableView table) {
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
    if constexpr (!formats::is_plain<F> && F::columnwise != formats::Columnwise::requantized) {
      const std::int64_t of_data = table.turned.count, of_scales = scale_units<F>(table).count;
      device::start<device::turning<F>>(stream, device::columnwise_kernel<F>, of_data + of_scales, table,
                                        device::Mixed(of_data, of_scales));
    }
  });
}

void swizzle(Stream& stream, FormatId format, const TableView& table) {
  visit_format(format, [&]<class F>() {
    if constexpr (formats::swizzles<F>()) device::start(stream, device::swizzle_kernel<F>, table.all.count, table);
  });
}

}  // namespace tessera::quantizer
