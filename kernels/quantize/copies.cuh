#pragma once
// Device code: quantizers, which make both copies of a matrix's codes, and their launches. For CUDA sources that each
// compile those of one family, at the same time.
#include <algorithm>
#include <variant>

#include "kernels/formats/mx.hpp"
#include "kernels/quantize/ahead.cuh"
#include "kernels/quantize/back.hpp"
#include "kernels/quantize/choice.cuh"
#include "kernels/quantize/columns.cuh"
#include "kernels/quantize/draws.cuh"
#include "kernels/quantize/scales.cuh"

namespace tessera::quantizer {
namespace device {

using formats::Columnwise;
using formats::TensorScale;

/// Blocks of threads per multiprocessor. A thread keeps its values in registers: 64 for bf16, 128 for fp32. More blocks
/// hide more latency, until registers spill to memory.
template <Format F, class Source>
inline constexpr int patches_a_multiprocessor = !Held<Source>::narrow                      ? 2
                                                : F::columnwise == Columnwise::requantized ? 4
                                                                                           : 5;

/// Whether blocks of threads work on bands: if both copies are stored in the source's order, bands fill sectors of both
/// scale arrays.
template <Format F>
inline constexpr bool in_bands = F::scaled ? F::columnwise_order == Order::as_source : false;
template <Format F>
inline constexpr Area area_of = in_bands<F> ? Area{32, 1024} : one_patch;
inline constexpr int ahead_blocks = 4;
template <Format F, class Source>
inline constexpr int blocks_a_multiprocessor = (threads * patches_a_multiprocessor<F, Source>) / threads_of(area_of<F>);

/// Shared memory of a block of threads: what is gathered of an area before it is stored.
template <Format F, class M>
struct Shared {
  static constexpr bool turned = F::columnwise_order == Order::transposed;
  alignas(16) std::byte codes[turned ? Turned<typename F::Element>::bytes : 16];
  Grid<F, Side::rowwise, area_of<F>> rowwise;
  Grid<F, Side::columnwise, area_of<F>> columnwise;
  ScaleLines lines[2];
  typename Encodings<F>::Memory encodings[2];
  std::conditional_t<rounds_at_random<F, M>, Draws::Memory, std::monostate> draws;
  std::uint32_t warps[threads / 32];
  ColumnTops<F> columns;
};

/// Number of bands in the area that a task names.
template <Format F>
inline constexpr int bands_a_group = (patch_edge / area_of<F>.rows) * (scale_area<F>().columns / area_of<F>.columns);

template <class Extent>
__device__ OwnedRows owned_rows(const Descriptor& d, const Patch& p) {
  if constexpr (Extent::all) return OwnedRows(0, p.rows);
  return OwnedRows(d, p);
}

/// Rows of a patch are owned or not as a whole, so all lines of the transposed copy have one length.
template <Format F, class Extent>
__device__ void store_turned(const Descriptor& d, const Patch& p, const Turned<typename F::Element>& codes,
                             const Extent& extent) {
  std::byte* out = d.side[1].data + formats::data_bytes<F>(turned_origin_of(d, p));
  if constexpr (Extent::all) {
    codes.store(out, d.matrix.rows, extent.columns);
  } else {
    const OwnedRows owned(d, p);
    codes.store_some(out, d.matrix.rows, p.columns, owned.begin, owned.end);
  }
}

/// Quantizes in square tiles: one encoding serves both copies.
template <Format F, class M, class Extent>
__device__ void quantize_tiles(Held<typename M::Source>& x, const Descriptor& d, const Patch& p, const Extent& extent,
                               Shared<F, M>& shared, const TensorScale& tensor) {
  using Element = typename F::Element;
  constexpr int tile = F::block.rows;
  constexpr bool turned = F::columnwise == Columnwise::transposed;
  const Seat seat(area_of<F>);
  const std::int64_t width = d.matrix.columns;
  constexpr bool without_nan = std::is_same_v<Element, formats::E2M1>;
  std::uint32_t top = !F::scaled ? 0 : without_nan && !formats::chooses<F> ? largest_without_nan(x) : largest(x);
  if constexpr (!F::scaled) {
  } else if constexpr (tile == patch_edge) {
    top = largest_of_block(top, shared.warps);
  } else {
    static_assert(tile == height || tile == 2 * height);
    top = largest_across<tile / run>(top);
    if constexpr (tile > height) top = shuffled_larger(top, 16);
  }
  const auto encoding = encoding_of_tile<F>(tensor, top, x);
  if constexpr (formats::chooses<F>) largest_without_nan(x);  // NaN has no error, unlike infinity
  if (seat.row % tile == 0 && seat.column % tile == 0) {
    shared.rowwise.at(seat.row / tile, seat.column / tile) = encoding.scale;
    shared.columnwise.at(seat.row / tile, seat.column / tile) = encoding.scale;
  }
  std::byte* out = row_of<F>(d, p, Side::rowwise, seat);
  Run<Element> codes[height];
#pragma unroll
  for (int r = 0; r < height; ++r) {
    codes[r] = encode_row<Element>(x, r, encoding.multiplier);
    if (d.side[0].data) store_row<Element>(out + formats::data_bytes<F>(r * width), codes[r], seat, r, extent);
  }
  const Turned<Element> columns(shared.codes);
  if (turned && d.side[1].data) columns.put(codes, seat);
  __syncthreads();
  store_square_scales(d, p, shared.lines, shared.rowwise, shared.columnwise, owned_rows<Extent>(d, p));
  if (turned && d.side[1].data) store_turned<F>(d, p, columns, extent);
}

/// Quantizes in blocks along rows: each block belongs to a few neighbouring lanes.
template <Format F, class M, class Extent>
__device__ void quantize_rows(const Held<typename M::Source>& x, const Descriptor& d, const Patch& p,
                              const Extent& extent, Shared<F, M>& shared, const TensorScale& tensor) {
  using Element = typename F::Element;
  constexpr int length = F::block.columns;
  constexpr bool at_random = rounds_at_random<F, M>;
  const Seat seat;
  std::byte* out = row_of<F>(d, p, Side::rowwise, seat);
  const Encodings<F> encoding_of(tensor, shared.encodings[0]);
  if constexpr (at_random) Draws(shared.draws).fill(d, p, Side::rowwise, seat);
#pragma unroll
  for (int r = 0; r < height; r += 2) {
    std::uint32_t top[2];
    largest_of_rows<length / run>(x, r, top);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const TensorScale line = line_scale<F>(Side::rowwise, d, p, seat.row + r + k, 0, tensor);
      const auto encoding = encoding_of_row(encoding_of, top[k], line, x, r + k);
      if (seat.column % length == 0) shared.rowwise.at(seat.row + r + k, seat.column / length) = encoding.scale;
      float v[run];
#pragma unroll
      for (int c = 0; c < run; ++c) v[c] = x.value(r + k, c) * encoding.multiplier;
      Run<Element> codes;
      if constexpr (at_random)
        codes = encode_run_at_random(v, [&](int c) {
          return Draws::along_row(Draws(shared.draws).four(seat.row + r + k, seat.column + c / 4 * 4), c);
        });
      else
        codes = encode_run(Element(), v);
      store_row<Element>(out + formats::data_bytes<F>((r + k) * d.matrix.columns), codes, seat, r + k, extent);
    }
  }
}

/// Quantizes in blocks along columns and transposes: the sixteen codes of a column become neighbours.
template <Format F, class M>
__device__ void turn_columns(const Held<typename M::Source>& x, const Descriptor& d, const Patch& p,
                             Shared<F, M>& shared, const TensorScale& tensor) {
  using Element = typename F::Element;
  constexpr int length = F::block.columns;
  constexpr bool at_random = rounds_at_random<F, M>;
  const Seat seat;
  const Encodings<F> encoding_of(tensor, shared.encodings[1]);
  std::uint32_t draws[at_random ? height : 1], top[run];
  if constexpr (at_random) Draws(shared.draws).fill(d, p, Side::columnwise, seat);
  if constexpr (!rotates<F, M>) largest_of_column_blocks(x, seat, top, shared.columns);
  const Turned<Element> turned(shared.codes);
#pragma unroll
  for (int c = 0; c < run; ++c) {
    float y[height];
    column_of<rotates<F, M>>(x, c, y, top[c]);
    const TensorScale line = line_scale<F>(Side::columnwise, d, p, 0, seat.column + c, tensor);
    const auto encoding = encoding_of_column(encoding_of, top[c], line, y);
    if constexpr (at_random) {
#pragma unroll
      for (int r = 0; r < height; ++r)
        if (c % 4 == 0) draws[r] = Draws(shared.draws).four(seat.row + r, seat.column + c);
    }
    if (seat.row % length == 0) shared.columnwise.at(seat.row / length, seat.column + c) = encoding.scale;
    Column<Element> codes;
#pragma unroll
    for (int half = 0; half < height; half += run) {
      float v[run];
#pragma unroll
      for (int r = 0; r < run; ++r) v[r] = y[half + r] * encoding.multiplier;
      Run<Element> part;
      if constexpr (at_random) {
        part = encode_run_at_random(
            v, [&](int r) { return Draws::along_column(draws[half + r], draws[half + r + 2], c); });
      } else {
        part = encode_run(Element(), v);
      }
#pragma unroll
      for (int w = 0; w < Run<Element>::words; ++w) codes.word[half / run * Run<Element>::words + w] = part.word[w];
    }
    turned.put(codes, seat, c);
  }
}

/// Quantizes in blocks along rows and along columns, with both copies in the source's order: one row of both at a time.
template <Format F, class M, class Extent>
__device__ void quantize_in_place(const Held<typename M::Source>& x, const Descriptor& d, const Patch& p,
                                  const Extent& extent, Shared<F, M>& shared, const TensorScale (&tensor)[2]) {
  using Element = typename F::Element;
  constexpr int length = F::block.columns;
  const Seat seat(area_of<F>);
  std::uint32_t top[run];
  largest_of_column_blocks(x, seat, top, shared.columns);
  float multiplier[run];
#pragma unroll
  for (int c = 0; c < run; ++c) {
    const auto encoding = F::encoding(largest_of(top[c]), tensor[1]);
    multiplier[c] = encoding.multiplier;
    if (seat.row % length == 0) shared.columnwise.at(seat.row / length, seat.column + c) = encoding.scale;
  }
  std::byte *rows = row_of<F>(d, p, Side::rowwise, seat), *columns = row_of<F>(d, p, Side::columnwise, seat);
  const bool rowwise = d.side[0].data != nullptr, columnwise = d.side[1].data != nullptr;
  bool nan = false;
  if constexpr (std::is_same_v<Element, formats::E2M1> && Held<typename M::Source>::narrow) nan = holds_nan(x);
  const std::int64_t step = formats::data_bytes<F>(d.matrix.columns);
#pragma unroll
  for (int r = 0; r < height; r += 2) {
    std::uint32_t of_row[2];
    largest_of_rows<length / run>(x, r, of_row);
#pragma unroll
    for (int k = 0; k < 2; ++k, rows += step, columns += step) {
      const auto encoding = F::encoding(largest_of(of_row[k]), tensor[0]);
      if (seat.column % length == 0) shared.rowwise.at(seat.row + r + k, seat.column / length) = encoding.scale;
      if (rowwise)
        store_row<Element>(rows, encode_row<Element>(x, r + k, encoding.multiplier, nan), seat, r + k, extent);
      if (columnwise) store_row<Element>(columns, encode_row<Element>(x, r + k, multiplier), seat, r + k, extent);
    }
  }
}

template <Format F, class M, class Extent>
__device__ void quantize_blocks(const Held<typename M::Source>& x, const Descriptor& d, const Patch& p,
                                const Extent& extent, Shared<F, M>& shared, const TensorScale (&tensor)[2]) {
  if constexpr (F::columnwise_order == Order::as_source) {
    quantize_in_place<F, M>(x, d, p, extent, shared, tensor);
  } else {
    if constexpr (follows_scale<F>) {
      for (int s = 0; s < 2; ++s)
        if (d.side[s].data) Encodings<F>(tensor[s], shared.encodings[s]).prepare();
      __syncthreads();
    }
    if (d.side[0].data) quantize_rows<F, M>(x, d, p, extent, shared, tensor[0]);
    if (d.side[1].data) turn_columns<F, M>(x, d, p, shared, tensor[1]);
  }
  __syncthreads();
  const auto store_all = [&]<Side side>(const Grid<F, side, area_of<F>>& grid) {
    if constexpr (Extent::all && entry_a_thread<F, side>)
      store_entry(d, p, grid, extent);
    else
      store_scales(d, p, shared.lines[static_cast<int>(side)], grid, owned_rows<Extent>(d, p));
  };
  if (d.side[0].data) store_all(shared.rowwise);
  if (d.side[1].data == nullptr) return;
  store_all(shared.columnwise);
  if constexpr (F::columnwise_order == Order::transposed)
    store_turned<F>(d, p, Turned<typename F::Element>(shared.codes), extent);
}

template <Format F, class M, class Extent>
__device__ void quantize_held(Held<typename M::Source> x, const Descriptor& d, const Patch& p, const Extent& extent,
                              Shared<F, M>& shared) {
  if constexpr (std::is_base_of_v<FromBf16, typename M::Source>)
    if (d.not_finite != nullptr && not_finite(x)) *d.not_finite = 1;
  find_lines<F, area_of<F>>(d, p, owned_rows<Extent>(d, p), shared.lines);
  const TensorScale tensor[2] = {member_scale<F>(Side::rowwise, d, p), member_scale<F>(Side::columnwise, d, p)};
  if constexpr (F::block.rows == F::block.columns)
    quantize_tiles<F, M>(x, d, p, extent, shared, d.side[0].amax ? tensor[0] : tensor[1]);
  else
    quantize_blocks<F, M>(x, d, p, extent, shared, tensor);
}
template <Format F, class M, class Extent>
__device__ void quantize_patch(const Descriptor& d, const Patch& p, const Extent& extent, Shared<F, M>& shared) {
  using Source = typename M::Source;
  if constexpr (formats::is_plain<F>) {
    store_plain<F, Source>(d, p, extent);
  } else {
    const auto x = [&] {
      if constexpr (OfGelu<Source>)
        return load_gelus<Source>(d, p, extent);
      else if constexpr (OfSwiglu<Source>)
        return load_swiglus<Source>(d, p, extent);
      else
        return load<Source>(SourcePatch<Source>(d, p).origin, d.matrix.columns, Seat(area_of<F>), extent);
    }();
    if constexpr (Summed<Source>)
      if (d.column_sums != nullptr) store_sums(x, d, p, shared.columns.of_band);
    quantize_held<F, M>(x, d, p, extent, shared);
  }
}

/// Not inlined, so that the registers of these rare patches do not count for the others.
template <Format F, class M>
__device__ __noinline__ void quantize_part(const Descriptor& d, std::int64_t member, std::int64_t row,
                                           std::int64_t column, bool vectors, Shared<F, M>& shared) {
  const Patch p = area_at(d, member, row, column, area_of<F>);
  if constexpr (scales_by_entry<F>)
    if (vectors && owned_rows_whole(d, p)) return quantize_patch<F, M>(d, p, WholeRows{p.columns}, shared);
  quantize_patch<F, M>(d, p, Part{p, d.matrix.columns, vectors}, shared);
}

template <Format F, class M>
__global__ void __launch_bounds__(threads_of(area_of<F>), blocks_a_multiprocessor<F, typename M::Source>)
    bands_kernel(const __grid_constant__ TableView table) {
  __shared__ Descriptor descriptor;
  __shared__ Shared<F, M> shared;
  const Task task = table.owned_groups[blockIdx.x / bands_a_group<F>];
  const int band = static_cast<int>(blockIdx.x % bands_a_group<F>);
  constexpr int down = patch_edge / area_of<F>.rows;
  const Descriptor& d = fetch(table, task, descriptor);
  const Patch p = area_at(d, task.member, std::int64_t{task.row} * patch_edge + band % down * area_of<F>.rows,
                          std::int64_t{task.column} * patch_edge + band / down * area_of<F>.columns, area_of<F>);
  const OwnedRows owned(d, p);
  if (owned.begin >= owned.end || p.columns == 0) return;
  const bool vectors = d.aligned.values && d.aligned.rowwise && d.aligned.columnwise;
  if (vectors && owned.end - owned.begin == area_of<F>.rows)
    quantize_patch<F, M>(d, p, WholeRows{p.columns}, shared);
  else
    quantize_part<F, M>(d, p.member, p.row, p.column, vectors, shared);
}

template <Format F, class M>
__global__ void __launch_bounds__(threads, blocks_a_multiprocessor<F, typename M::Source>)
    copies_kernel(const __grid_constant__ TableView table) {
  __shared__ Descriptor descriptor;
  __shared__ Shared<F, M> shared;
  // Tasks run backwards after the launch that read all values for their maximum: the last values are still in the
  // cache.
  Task task = table.owned[F::tensor_amax ? gridDim.x - 1 - blockIdx.x : blockIdx.x];
  // Neighbours in turn take the patches of gate and up that have one dy, so that the second finds it in the cache.
  if constexpr (std::is_same_v<typename M::Source, FromSwigluGradient>)
    task.column = task.column % 2 * (table.owned.across / 2) + task.column / 2;
  if constexpr (repeats_scales<F>) let_next_begin();
  const Descriptor& d = fetch(table, task, descriptor);
  if constexpr (F::tensor_amax) await_previous();
  const Patch p = patch_of(d, task);
  if (p.rows == 0) return;
  const bool vectors = d.aligned.values && d.aligned.rowwise && d.aligned.columnwise;
  if (vectors && owned_whole(d, p))
    quantize_patch<F, M>(d, p, Whole(), shared);
  else
    quantize_part<F, M>(d, p.member, p.row, p.column, vectors, shared);
}

template <Format F, class M>
struct AheadMemory {
  typename Ahead<typename M::Source>::Memory sources;
  Shared<F, M> shared;
  Descriptor descriptor;
};

/// Blocks of threads that stay: each takes patches in turn, and fetches the next one's sources ahead. Where
/// reads_ahead() holds.
template <Format F, class M>
__global__ void __launch_bounds__(threads, ahead_blocks) ahead_kernel(const __grid_constant__ TableView table) {
  extern __shared__ uint4 memory[];
  using Rows = Ahead<typename M::Source>;
  auto& [sources, shared, descriptor] = *reinterpret_cast<AheadMemory<F, M>*>(memory);
  const Descriptor& d = fetch(table, Task{}, descriptor);
  const TaskWalk walk(table.owned);
  Rows ahead(sources, d);
  TaskWalk::At at = walk.first();
  ahead.aim(at.patch(d));
#pragma unroll
  for (int g = 0; g < Rows::slots; ++g) ahead.fetch(g);
  while (walk.holds(at)) {
    const Patch p = at.patch(d);
    at = walk.after(at);
    Pairs x;
#pragma unroll
    for (int g = 0; g < Rows::groups; ++g) {
      ahead.await();
      if (p.rows > 0)  // always: else the compiler mixes groups and spills registers
#pragma unroll
        for (int r = g * Rows::rows; r < (g + 1) * Rows::rows; ++r) ahead.read(r, x);
      const int next = g + Rows::slots;
      if (next == Rows::groups) walk.holds(at) ? ahead.aim(at.patch(d)) : ahead.aim();
      ahead.fetch(next % Rows::groups);
    }
    if constexpr (Summed<typename M::Source>)
      if (d.column_sums != nullptr) store_sums(x, d, p, shared.columns.of_band);
    quantize_held<F, M>(x, d, p, WholeRows{p.columns}, shared);
    __syncthreads();  // before the next patch's scales overwrite those that are being stored
  }
  ahead.finish();
}

/// Fills both arrays of scales from the first row of each block.
template <Format F>
__global__ void __launch_bounds__(2 * threads) repeat_kernel(const __grid_constant__ TableView table) {
  __shared__ Descriptor descriptor;
  constexpr Area area = scale_area<F>();
  __shared__ Grid<F, Side::rowwise, area> rowwise;
  __shared__ Grid<F, Side::columnwise, area> columnwise;
  const Task task = table.owned_groups[blockIdx.x];
  const Descriptor& d = fetch(table, task, descriptor);
  await_previous();
  if (!scales_follow<F>(d)) return;
  const Patch p = patch_of(d, task, area);
  const OwnedRows owned(d, p);
  gather_scales(d, p, owned, rowwise, columnwise);
  __syncthreads();
  store_scales(d, p, rowwise, owned);
  store_scales(d, p, columnwise, owned);
}

/// Whether a kernel exists that fetches ahead: where a gelu is computed, which hides what is fetched. Quantizers of
/// plain values are up to 4% slower with it.
template <Format F, class M>
inline constexpr bool may_read_ahead = OfGelu<typename M::Source>&& scales_by_entry<F>;
/// Whether it may be used: for one whole matrix, all of it in use, whose rows are multiples of 128.
inline bool reads_ahead(const TableView& table) {
  const Descriptor& d = table.one;
  return table.items == nullptr && d.members == 1 && d.begin == 0 && d.end == d.matrix.elements() &&
         d.rows_end == nullptr && d.matrix.rows % patch_edge == 0 && d.aligned.values && d.aligned.rowwise &&
         d.aligned.columnwise;
}

/// Number of blocks of threads that fill the GPU.
template <class Kernel>
std::int64_t blocks_that_stay(Kernel* kernel, int shared_bytes) {
  int gpu = 0, processors = 0;
  check_cuda(cudaGetDevice(&gpu), "quantize");
  check_cuda(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, gpu), "quantize");
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes), "quantize");
  check_cuda(
      cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared),
      "quantize");
  return std::int64_t{processors} * ahead_blocks;
}
template <Format F, class M>
void start_ahead(Stream& stream, const TableView& table) {
  constexpr int bytes = sizeof(AheadMemory<F, M>);
  const std::int64_t most = stream.dry() ? 1 : blocks_that_stay(ahead_kernel<F, M>, bytes);
  start<threads, Begins::in_turn, bytes>(stream, ahead_kernel<F, M>, std::min(table.owned.count, most), table);
}

/// Formats whose quantizers are compiled together.
enum class Family : std::uint8_t { fp8, mx, nvfp4 };
template <Format F>
inline constexpr Family family_of = std::is_base_of_v<formats::MxScaling<typename F::Element>, F> ? Family::mx
                                    : std::is_same_v<typename F::Element, formats::E2M1>          ? Family::nvfp4
                                                                                                  : Family::fp8;

/// make_copies() of the formats of a family.
template <Family family>
void make_copies_of(Stream& stream, FormatId format, const TableView& table, Reading reading, Purpose purpose) {
  const auto make = [&]<class F, class M>() {
    if constexpr (may_read_ahead<F, M>)
      if (reads_ahead(table)) return start_ahead<F, M>(stream, table);
    if constexpr (in_bands<F>)
      start<threads_of(area_of<F>)>(stream, bands_kernel<F, M>, table.owned_groups.count * bands_a_group<F>, table);
    else
      start<threads, F::tensor_amax ? Begins::early : Begins::in_turn>(stream, copies_kernel<F, M>, table.owned.count,
                                                                       table);
    if constexpr (repeats_scales<F>)
      start<2 * threads, Begins::early>(stream, repeat_kernel<F>, table.owned_groups.count, table);
  };
  visit_format(format, [&]<class F>() {
    if constexpr (family_of<F> == family) with_reading<F>(reading, purpose, make);
  });
}
extern template void make_copies_of<Family::fp8>(Stream&, FormatId, const TableView&, Reading, Purpose);
extern template void make_copies_of<Family::mx>(Stream&, FormatId, const TableView&, Reading, Purpose);
extern template void make_copies_of<Family::nvfp4>(Stream&, FormatId, const TableView&, Reading, Purpose);

}  // namespace device
}  // namespace tessera::quantizer
