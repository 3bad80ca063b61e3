#pragma once
// Only for CUDA sources. Work on matrices in packs: memory accesses of 16 bytes.
#include "kernels/base/columns.cuh"
#include "kernels/base/cuda.cuh"
#include "kernels/base/launch.hpp"

namespace tessera::packs {

constexpr int block_threads = 256;

template <class T>
inline constexpr int lanes = columns::widest<T>;
template <class T>
using Pack = columns::Lanes<T, lanes<T>>;

/// Whether rows of `columns` values can be read in packs: a row is a whole number of packs, and every tensor begins at
/// a multiple of 16 bytes.
template <class T, class... Tensors>
bool whole(std::int64_t columns, const Tensors&... tensors) {
  return columns % lanes<T> == 0 && (columns::aligned(tensors) && ...);
}

template <class F>
__global__ void __launch_bounds__(block_threads) each(std::int64_t n, const F f) {
  const std::int64_t i = std::int64_t{blockIdx.x} * block_threads + threadIdx.x;
  if (i < n) f(i);
}

/// Launches f(i) for i in [0, n), one thread each.
template <class F>
void start(Stream& stream, std::int64_t n, const F& f) {
  stream.count_launch();
  if (stream.dry() || n <= 0) return;
  const auto blocks = static_cast<unsigned>(ceil_div(n, std::int64_t{block_threads}));
  start_kernel(space_of(stream).cuda_stream(), "each", each<F>, {blocks, block_threads}, n, f);
}

template <class F>
__global__ void __launch_bounds__(block_threads) each_of_rows(std::int64_t rows, int width, const F f) {
  const std::int64_t row = std::int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  const int p = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  if (row < rows && p < width) f(row, p);
}

/// Launches f(row, p) for p in [0, width) of every row, one thread each; neighbouring p of a row are in one warp.
template <class F>
void start_rows(Stream& stream, std::int64_t rows, std::int64_t width, const F& f) {
  stream.count_launch();
  if (stream.dry() || rows <= 0 || width <= 0) return;
  unsigned across = block_threads;
  while (across > 1 && across / 2 >= width) across /= 2;
  const dim3 threads(across, block_threads / across);
  const dim3 blocks(static_cast<unsigned>(ceil_div(rows, std::int64_t{threads.y})),
                    static_cast<unsigned>(ceil_div(width, std::int64_t{across})));
  start_kernel(space_of(stream).cuda_stream(), "each_of_rows", each_of_rows<F>, {blocks, threads}, rows,
               static_cast<int>(width), f);
}

template <class F>
__global__ void __launch_bounds__(block_threads) each_by_warp(std::int64_t rows, const F f) {
  const std::int64_t row = (std::int64_t{blockIdx.x} * block_threads + threadIdx.x) / 32;
  if (row < rows) f(row, static_cast<int>(threadIdx.x % 32));
}
/// Launches f(row, lane) with one warp a row.
template <class F>
void start_warps(Stream& stream, std::int64_t rows, const F& f) {
  stream.count_launch();
  if (stream.dry() || rows <= 0) return;
  const auto blocks = static_cast<unsigned>(ceil_div(rows, std::int64_t{block_threads / 32}));
  start_kernel(space_of(stream).cuda_stream(), "each_by_warp", each_by_warp<F>, {blocks, block_threads}, rows, f);
}

/// The sum of `value` over a warp, in every lane; the order of additions is fixed.
template <class A>
__device__ A warp_sum(A value) {
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(~0u, value, distance);
  return value;
}

}  // namespace tessera::packs
