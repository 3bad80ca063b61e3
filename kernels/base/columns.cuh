#pragma once
// Only for CUDA sources. Sums over the rows of a matrix, in an order that depends on its shape alone.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "kernels/base/cuda.cuh"
#include "kernels/base/index.hpp"
#include "kernels/base/tensor.hpp"

namespace tessera::columns {

/// N values that one memory access reads or writes.
template <class T, int N>
struct alignas(sizeof(T) * N) Lanes {
  T value[N];
  __device__ static Lanes at(const T* place) { return *reinterpret_cast<const Lanes*>(place); }
  __device__ void to(T* place) const { *reinterpret_cast<Lanes*>(place) = *this; }
};
template <class T>
inline constexpr int widest = 16 / static_cast<int>(sizeof(T));

/// fp32 numbers rounded to T. For bf16 the GPU rounds pairs, to the same bits as ours but for a NaN's payload.
template <class T, int N>
__device__ Lanes<T, N> rounded(const float (&v)[N]) {
  if constexpr (std::is_same_v<T, bf16>) {
    Lanes<std::uint32_t, N / 2> pairs;
    for (int i = 0; i < N / 2; ++i)
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pairs.value[i]) : "f"(v[2 * i + 1]), "f"(v[2 * i]));
    return std::bit_cast<Lanes<T, N>>(pairs);
  } else {
    Lanes<T, N> lanes;
    for (int l = 0; l < N; ++l) lanes.value[l] = T(v[l]);
    return lanes;
  }
}

/// The numbers in fp32. The upper bf16 of a pair is widened by a mask, not by two shifts.
template <class T, int N>
__device__ Lanes<float, N> wide(const Lanes<T, N>& lanes) {
  Lanes<float, N> v;
  if constexpr (std::is_same_v<T, bf16>) {
    const auto pairs = std::bit_cast<Lanes<std::uint32_t, N / 2>>(lanes);
    for (int i = 0; i < N / 2; ++i) {
      v.value[2 * i] = __uint_as_float(pairs.value[i] << 16);
      v.value[2 * i + 1] = __uint_as_float(pairs.value[i] & 0xFFFF0000u);
    }
  } else {
    for (int l = 0; l < N; ++l) v.value[l] = float(lanes.value[l]);
  }
  return v;
}

inline bool aligned(const Tensor& t) { return !t || reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0; }

constexpr std::int64_t most_blocks = 256, warp = 32, rows_at_once = 8;

/// The number of blocks into which `rows` are cut, and of partial sums a column (first dimension of `parts`).
inline std::int64_t blocks_of(std::int64_t rows) {
  return std::clamp(ceil_div(rows, 4 * rows_at_once), std::int64_t{1}, most_blocks);
}

/// parts[o] [blocks, columns] = quantity o summed over each block's rows: f(row, column, sum) adds a row's share for
/// column + l to sum[o][l]. Each thread has `lanes` neighbouring columns; `lanes` divides the number of columns.
template <int outputs, int lanes, class A>
struct BlockSums {
  A* to[outputs];
};
template <int outputs, int lanes, class A, class F>
__global__ void __launch_bounds__(warp* rows_at_once)
    sum_blocks(BlockSums<outputs, lanes, A> parts, std::int64_t rows, std::int64_t columns, const F f) {
  const std::int64_t column = (blockIdx.x * warp + threadIdx.x) * lanes;
  const std::int64_t share = ceil_div(rows, std::int64_t{gridDim.y}), first = blockIdx.y * share;
  const std::int64_t last = first + share < rows ? first + share : rows;
  A sum[outputs][lanes] = {};
  if (column < columns)
    for (std::int64_t r = first + threadIdx.y; r < last; r += rows_at_once) f(r, column, sum);
  __shared__ A all[rows_at_once][lanes * warp];
  for (int o = 0; o < outputs; ++o) {
    __syncthreads();
    for (int l = 0; l < lanes; ++l) all[threadIdx.y][l * warp + threadIdx.x] = sum[o][l];
    __syncthreads();
    if (column >= columns) continue;
    // Every row of threads adds up its share of the lanes.
    for (int l = static_cast<int>(threadIdx.y); l < lanes; l += rows_at_once) {
      A total = 0;
      for (int y = 0; y < rows_at_once; ++y) total += all[y][l * warp + threadIdx.x];
      parts.to[o][blockIdx.y * columns + column + l] = total;
    }
  }
}

/// sum [columns] = beta sum + the parts [blocks, columns], added in a fixed order. warp x 32 threads a block.
template <class A>
__global__ void add_blocks(A* sum, const A* parts, std::int64_t blocks, std::int64_t columns, A beta) {
  __shared__ A all[32][warp + 1];
  const std::int64_t column = blockIdx.x * warp + threadIdx.x;
  A mine = 0;
  if (column < columns)
    for (std::int64_t b = threadIdx.y; b < blocks; b += 32) mine += parts[b * columns + column];
  all[threadIdx.y][threadIdx.x] = mine;
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
  A total = 0;
  for (int y = 0; y < 32; ++y) total += all[y][threadIdx.x];
  sum[column] = beta == A(0) ? total : beta * sum[column] + total;
}

template <int lanes, int outputs, class A, class F>
void start_blocks(cudaStream_t stream, A* const (&parts)[outputs], std::int64_t rows, std::int64_t columns,
                  const F& f) {
  BlockSums<outputs, lanes, A> to;
  for (int o = 0; o < outputs; ++o) to.to[o] = parts[o];
  const dim3 grid(static_cast<unsigned>(ceil_div(columns, warp * lanes)), static_cast<unsigned>(blocks_of(rows)));
  start_kernel(stream, "sum_blocks", sum_blocks<outputs, lanes, A, F>, {grid, dim3(warp, rows_at_once)}, to, rows,
               columns, f);
}

/// sum = beta sum + the column sums of a matrix of few rows.
template <class A>
void start_add_rows(cudaStream_t stream, const Gradient& sum, const A* matrix, std::int64_t rows,
                    std::int64_t columns) {
  start_kernel(stream, "add_blocks", add_blocks<A>, {static_cast<unsigned>(ceil_div(columns, warp)), dim3(warp, 32)},
               sum.sum.as<A>(), matrix, rows, columns, static_cast<A>(sum.beta));
}
/// The same of the partial sums of a matrix of `rows`.
template <class A>
void start_add(cudaStream_t stream, const Gradient& sum, const A* parts, std::int64_t rows, std::int64_t columns) {
  start_add_rows(stream, sum, parts, blocks_of(rows), columns);
}

}  // namespace tessera::columns
