// Amaxes of tensors and lines, and the way to a family's quantizers.
#include "kernels/quantize/copies.cuh"

namespace tessera::quantizer {
namespace device {
namespace {

/// Largest magnitude of the thread's values once they are rotated.
template <class X>
__device__ std::uint32_t largest_rotated(const X& x) {
  float top = 0;
#pragma unroll
  for (int c = 0; c < run; ++c) {
    float y[height];
    nearly_rotated(x, c, y);
    top = fmaxf(top, largest_when_rotated(y));
  }
  return __float_as_uint(top * rotation_factor);
}

template <Format F, class M>
__global__ void __launch_bounds__(threads, blocks_a_multiprocessor<F, typename M::Source>)
    largest_kernel(const __grid_constant__ TableView table) {
  __shared__ Descriptor descriptor;
  __shared__ std::uint32_t warps[2][threads / 32];
  using Source = typename M::Source;
  const Task task = table.owned[blockIdx.x];
  let_next_begin();
  const Descriptor& d = fetch(table, task, descriptor);
  const Patch p = patch_of(d, task);
  const SourcePatch<Source> source(d, p);
  const bool vectors = d.aligned.values;
  const auto x = vectors && owned_whole(d, p)
                     ? load<Source>(source.origin, source.width, Seat(), Whole())
                     : load<Source>(source.origin, source.width, Seat(), Part{p, d.matrix.columns, vectors});
  std::uint32_t top[2] = {};
  if constexpr (rotates<F, M>) {
    if (d.side[0].amax != nullptr) top[0] = largest_of_block(largest(x), warps[0]);
    if (d.side[1].amax != nullptr) top[1] = largest_of_block(largest_rotated(x), warps[1]);
  } else {
    top[0] = top[1] = largest_of_block(largest(x), warps[0]);  // both copies see equal values
  }
  if (threadIdx.x != 0) return;
  table.largest[0][blockIdx.x] = largest_of(top[0]);
  table.largest[1][blockIdx.x] = largest_of(top[1]);
}

/// Raises the amax of the line of an element of a patch, if it is there.
template <Format F, Side side>
__device__ void raise(const Descriptor& d, const Patch& p, int row, int column, std::uint32_t top) {
  float* const amax = d.side[static_cast<int>(side)].amax + amax_place<F>(side, d, p, row, column);
  if (row < p.rows && column < p.columns) atomicMax(reinterpret_cast<unsigned*>(amax), top);
}

/// Raises the amaxes of the lines on both sides by those of a patch.
template <Format F, class M>
__global__ void __launch_bounds__(threads, blocks_a_multiprocessor<F, typename M::Source>)
    lines_kernel(const __grid_constant__ TableView table) {
  __shared__ Descriptor descriptor;
  using Source = typename M::Source;
  const Task task = table.owned[blockIdx.x];
  let_next_begin();
  const Descriptor& d = fetch(table, task, descriptor);
  const Patch p = patch_of(d, task);
  if (p.rows == 0) return;
  const SourcePatch<Source> source(d, p);
  const Seat seat;
  const bool vectors = d.aligned.values;
  const auto x = vectors && owned_whole(d, p)
                     ? load<Source>(source.origin, source.width, seat, Whole())
                     : load<Source>(source.origin, source.width, seat, Part{p, d.matrix.columns, vectors});
  if (d.side[0].amax != nullptr)
#pragma unroll
    for (int r = 0; r < height; r += 2) {
      std::uint32_t top[2];
      largest_of_rows<patch_edge / run>(x, r, top);
      if (seat.column == 0)
        for (int k = 0; k < 2; ++k) raise<F, Side::rowwise>(d, p, seat.row + r + k, 0, top[k]);
    }
  if (d.side[1].amax == nullptr) return;
  std::uint32_t top[run];
  if constexpr (!rotates<F, M>) largest_of_columns(x, top);
#pragma unroll
  for (int c = 0; c < run; ++c) {
    [[maybe_unused]] float y[height];
    if constexpr (rotates<F, M>) column_of<true>(x, c, y, top[c]);
    raise<F, Side::columnwise>(d, p, seat.row, seat.column + c, top[c]);
  }
}

__global__ void __launch_bounds__(member_threads) members_kernel(const __grid_constant__ TableView table) {
  __shared__ Descriptor descriptor;
  __shared__ std::uint32_t warps[2][member_threads / 32];
  const Task task = table.members[blockIdx.x];
  let_next_begin();
  const Descriptor& d = fetch(table, task, descriptor);
  await_previous();
  for (int s = 0; s < 2; ++s) {
    if (d.side[s].amax == nullptr) continue;
    const std::uint32_t top =
        largest_of_block<member_threads>(largest_of_patches(d, task.member, table.largest[s]), warps[s]);
    if (threadIdx.x == 0) d.side[s].amax[task.member] = largest_of(top);
  }
}

}  // namespace
}  // namespace device

void find_amax(Stream& stream, FormatId format, const TableView& table, Reading reading, Purpose purpose) {
  using device::Begins;
  const auto find = [&]<class F, class M>() {
    if constexpr (formats::by_lines<F>) {
      clear_lines(stream, table);
      device::start(stream, device::lines_kernel<F, M>, table.owned.count, table);
    } else if constexpr (F::tensor_amax) {
      device::start(stream, device::largest_kernel<F, M>, table.owned.count, table);
      device::start<device::member_threads, Begins::early>(stream, device::members_kernel, table.members.count, table);
    }
  };
  visit_format(format, [&]<class F>() { with_reading<F>(reading, purpose, find); });
}

void make_copies(Stream& stream, FormatId format, const TableView& table, Reading reading, Purpose purpose) {
  visit_format(format, [&]<class F>() {
    device::make_copies_of<device::family_of<F>>(stream, format, table, reading, purpose);
  });
}

}  // namespace tessera::quantizer
