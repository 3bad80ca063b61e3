#include "kernels/quantize/back.hpp"
#include "kernels/quantize/codes.cuh"
#include "kernels/quantize/scales.cuh"

namespace tessera::quantizer {
namespace device {
namespace {

using formats::TensorScale;

template <Format F>
__device__ std::int64_t amax_place(const Descriptor& d, const Patch& p, std::int64_t i, std::int64_t j) {
  const Matrix all = formats::blocks<F>(Side::rowwise, d.matrix);
  return d.first_block + p.member * all.elements() + (p.row / F::block.rows + i) * all.columns +
         p.column / F::block.columns + j;
}

/// Largest magnitude of the tile in which the thread's values lie.
template <Format F>
__device__ std::uint32_t largest_of_tile(std::uint32_t top, std::uint32_t* warps) {
  constexpr int tile = F::block.rows;
  if constexpr (tile == patch_edge) return largest_of_block(top, warps);
  top = largest_across<tile / run>(top);
  return tile > height ? shuffled_larger(top, 16) : top;
}

template <Format F, class Source>
__global__ void __launch_bounds__(threads, 4)
    amax_kernel(const __grid_constant__ TableView table, Amaxes amaxes) {
  __shared__ Descriptor descriptor;
  __shared__ std::uint32_t warps[2][threads / 32];
  [[maybe_unused]] constexpr int tile = F::block.rows;
  const Seat seat;
  const Task task = table.owned[blockIdx.x];
  const Descriptor& d = fetch(table, task, descriptor);
  const Patch p = patch_of(d, task);
  const SourcePatch<Source> source(d, p);
  const bool vectors = d.aligned.values;
  const auto x = vectors && owned_whole(d, p)
                     ? load<Source>(source.origin, source.width, seat, Whole())
                     : load<Source>(source.origin, source.width, seat, Part{p, source.width, vectors});
  const std::uint32_t top = largest_of_tile<F>(largest(x), warps[0]);
  if constexpr (formats::agrees_on_blocks(F::agreement))
    if (seat.row % tile == 0 && seat.column % tile == 0 && seat.row < p.rows && seat.column < p.columns)
      amaxes.blocks[amax_place<F>(d, p, seat.row / tile, seat.column / tile)] = static_cast<std::uint16_t>(top >> 16);
  if constexpr (F::tensor_amax) {
    const std::uint32_t most = largest_of_block(top, warps[1]);
    if (threadIdx.x == 0) table.largest[0][blockIdx.x] = largest_of(most);
  }
}

__global__ void __launch_bounds__(member_threads)
    members_kernel(const __grid_constant__ TableView table, Amaxes amaxes) {
  __shared__ Descriptor descriptor;
  __shared__ std::uint32_t warps[member_threads / 32];
  const Task task = table.members[blockIdx.x];
  const Descriptor& d = fetch(table, task, descriptor);
  const std::uint32_t top =
      largest_of_block<member_threads>(largest_of_patches(d, task.member, table.largest[0]), warps);
  if (threadIdx.x == 0) amaxes.members()[d.first_member + task.member] = static_cast<std::uint16_t>(top >> 16);
}

/// The member's scale, computed from its amax.
template <Format F>
__device__ TensorScale tensor_of(const Descriptor& d, const Patch& p, const Amaxes& amaxes) {
  if constexpr (F::tensor_amax) return F::tensor_scale(FromBf16::value(amaxes.members()[d.first_member + p.member]));
  return {};
}
template <Format F>
__device__ auto encoding_of(const Descriptor& d, const Patch& p, const Amaxes& amaxes, const TensorScale& tensor, int i,
                            int j) {
  if constexpr (!formats::agrees_on_blocks(F::agreement)) return F::encoding(0.0f, tensor);
  return F::encoding(FromBf16::value(amaxes.blocks[amax_place<F>(d, p, i, j)]), tensor);
}

/// Writes the data of exactly the owned elements. A thread's values lie in one tile.
template <Format F, class Source, class Extent>
__device__ void cast_patch(const Descriptor& d, const Patch& p, const Extent& extent, const Amaxes& amaxes) {
  if constexpr (formats::is_plain<F>) return store_plain<F, Source>(d, p, extent);
  using Element = typename F::Element;
  const Seat seat;
  const SourcePatch<Source> source(d, p);
  auto x = load<Source>(source.origin, source.width, seat, extent);
  if constexpr (std::is_same_v<Element, formats::E2M1>) largest_without_nan(x);
  float multiplier = 1;
  if (seat.row < p.rows && seat.column < p.columns)
    multiplier = encoding_of<F>(d, p, amaxes, tensor_of<F>(d, p, amaxes), seat.row / F::block.rows,
                                seat.column / F::block.columns)
                     .multiplier;
  std::byte* out = row_of<F>(d, p, Side::rowwise, seat);
#pragma unroll
  for (int r = 0; r < height; ++r) {
    store_row<Element>(out + formats::data_bytes<F>(r * source.width), encode_row<Element>(x, r, multiplier), seat, r,
                       extent);
  }
}

/// Writes a member's amax beside its copies; of its areas the first does.
__device__ inline void store_amax(const Descriptor& d, const Patch& p, const Amaxes& amaxes) {
  if (threadIdx.x != 0 || p.row != 0 || p.column != 0) return;
  for (const Addresses& copy : d.side)
    if (copy.amax) copy.amax[p.member] = FromBf16::value(amaxes.members()[d.first_member + p.member]);
}

/// Writes the scales of a whole area, whoever owns its elements; if scales travel, only those of owned blocks.
template <Format F, Area area>
__device__ void cast_scales(const Descriptor& d, Patch p, const Amaxes& amaxes, Grid<F, Side::rowwise, area>& rowwise,
                            Grid<F, Side::columnwise, area>& columnwise) {
  using G = Grid<F, Side::rowwise, area>;
  const TensorScale tensor = tensor_of<F>(d, p, amaxes);
  for (int q = static_cast<int>(threadIdx.x); q < G::rows * G::columns; q += threads) {
    const int i = q / G::columns, j = q % G::columns;
    const bool there = i * G::block.rows < p.rows && j * G::block.columns < p.columns;
    rowwise.at(i, j) = columnwise.at(i, j) =
        there ? encoding_of<F>(d, p, amaxes, tensor, i, j).scale : typename F::Scale{0};
  }
  __syncthreads();
  if (d.block_scales != nullptr) return store_block_scales(d, p, rowwise);
  p.low = 0;
  p.high = d.matrix.elements();  // every rank writes all scales and their padding
  const OwnedRows all(0, p.rows);
  store_scales(d, p, rowwise, all);
  if constexpr (F::columnwise == formats::Columnwise::shared) store_scales(d, p, columnwise, all);
}

template <Format F, class Source>
__global__ void __launch_bounds__(threads, 5)
    cast_kernel(const __grid_constant__ TableView table, Amaxes amaxes, Mixed mix) {
  __shared__ Descriptor descriptor;
  const unsigned unit = mix.place(blockIdx.x);
  if (formats::is_plain<F> || !mix.of_scales(blockIdx.x)) {
    const Task task = table.owned[unit];
    const Descriptor& d = fetch(table, task, descriptor);
    const Patch p = patch_of(d, task);
    const bool vectors = d.aligned.values && d.aligned.rowwise;
    if (vectors && owned_whole(d, p))
      cast_patch<F, Source>(d, p, Whole(), amaxes);
    else
      cast_patch<F, Source>(d, p, Part{p, d.matrix.columns, vectors}, amaxes);
  } else if constexpr (!formats::is_plain<F>) {
    constexpr Area area = scale_area<F>();
    const Task task = scale_units<F>(table)[unit];
    const Descriptor& d = fetch(table, task, descriptor);
    const Patch p = patch_of(d, task, area);
    if constexpr (F::tensor_amax) store_amax(d, p, amaxes);
    if constexpr (F::scaled) {
      __shared__ Grid<F, Side::rowwise, area> rowwise;
      __shared__ Grid<F, Side::columnwise, area> columnwise;
      cast_scales(d, p, amaxes, rowwise, columnwise);
    }
  }
}

template <class Work>
void with_source(Reading reading, const Work& work) {
  if (reading == Reading::bf16) return work.template operator()<FromBf16>();
  work.template operator()<FromMaster>();
}

}  // namespace
}  // namespace device

void find_block_amaxes(Stream& stream, FormatId format, const TableView& table, Reading reading, const Amaxes& amaxes) {
  visit_format(format, [&]<class F>() {
    if constexpr (F::agreement != formats::Agreement::nothing) {
      stream.count_launch();
      const auto entries = static_cast<std::size_t>(amaxes.block_entries + amaxes.member_entries);
      if (!stream.dry() && entries > 0)
        check_cuda(cudaMemsetAsync(amaxes.blocks, 0, entries * sizeof(std::uint16_t),
                                   static_cast<cudaStream_t>(stream.native())),
                   "quantize");
      device::with_source(reading, [&]<class Source>() {
        device::start(stream, device::amax_kernel<F, Source>, table.owned.count, table, amaxes);
      });
      if constexpr (F::tensor_amax)
        device::start<device::member_threads>(stream, device::members_kernel, table.members.count, table, amaxes);
    }
  });
}

void cast_shards(Stream& stream, FormatId format, const TableView& table, Reading reading, const Amaxes& amaxes) {
  visit_format(format, [&]<class F>() {
    if constexpr (formats::is_plain<F> || (F::agreement != formats::Agreement::nothing && !formats::chooses<F>)) {
      const std::int64_t of_scales = formats::is_plain<F> ? 0 : scale_units<F>(table).count;
      device::with_source(reading, [&]<class Source>() {
        device::start(stream, device::cast_kernel<F, Source>, table.owned.count + of_scales, table, amaxes,
                      device::Mixed(table.owned.count, of_scales));
      });
    }
  });
}

}  // namespace tessera::quantizer
