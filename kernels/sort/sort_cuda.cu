// A radix pass in three launches: blocks count the digits of their tiles; one block sums the counts up. Warps place
// their positions 32 at a time, ranking equal digits of a warp by lane.
#include "kernels/base/cuda.cuh"
#include "kernels/base/index.hpp"
#include "kernels/base/launch.hpp"
#include "kernels/sort/back.hpp"

namespace tessera::sorting {
namespace {

constexpr int warps = 8, block_threads = 32 * warps, rounds = 8, of_warp = 32 * rounds, of_block = warps * of_warp;
constexpr int buckets = static_cast<int>(most_buckets), scan_threads = 1024;
static_assert(of_block % tile == 0 && block_threads >= buckets);

struct Pass {
  std::int32_t* to;
  const std::int32_t* from;
  int n, width, blocks;  ///< width: number of digits
  Digit digit;
  std::int32_t* count;  ///< [width, blocks]: first counts, then the place of each block's first position of a digit

  __device__ int position(int i) const { return from != nullptr ? from[i] : i; }
  __device__ int digit_of(int position) const {
    return static_cast<int>((static_cast<std::uint32_t>(digit.keys[position]) >> digit.shift) & digit.mask);
  }
};

/// held[w][d] = number of positions of warp w with digit d. All threads of a block call it.
__device__ void count_warps(const Pass& p, std::int32_t (&held)[warps][buckets]) {
  for (int i = static_cast<int>(threadIdx.x); i < warps * buckets; i += block_threads) (&held[0][0])[i] = 0;
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int first = static_cast<int>(blockIdx.x) * of_block + warp * of_warp + lane;
  for (int r = 0; r < rounds; ++r) {
    const int i = first + 32 * r;
    const unsigned there = __ballot_sync(~0u, i < p.n);
    if (i < p.n) {
      const int d = p.digit_of(p.position(i));
      const unsigned same = __match_any_sync(there, d), earlier = same & ((1u << lane) - 1);
      if (earlier == 0) held[warp][d] += __popc(same);
      __syncwarp(there);
    }
  }
  __syncthreads();
}

__global__ void __launch_bounds__(block_threads) count_kernel(const Pass p) {
  __shared__ std::int32_t held[warps][buckets];
  count_warps(p, held);
  const int d = static_cast<int>(threadIdx.x);
  if (d >= p.width) return;
  std::int32_t all = 0;
  for (int w = 0; w < warps; ++w) all += held[w][d];
  p.count[d * p.blocks + static_cast<int>(blockIdx.x)] = all;
}

/// count = the exclusive prefix sum of counts, by digit and then by block.
__global__ void __launch_bounds__(scan_threads) scan_kernel(const Pass p) {
  __shared__ std::int32_t sums[scan_threads / 32];
  const int all = p.width * p.blocks, share = (all + scan_threads - 1) / scan_threads;
  const int begin = min(static_cast<int>(threadIdx.x) * share, all), end = min(begin + share, all);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  std::int32_t mine = 0;
  for (int i = begin; i < end; ++i) mine += p.count[i];
  std::int32_t up_to = mine;
  for (int distance = 1; distance < 32; distance *= 2) {
    const std::int32_t other = __shfl_up_sync(~0u, up_to, distance);
    if (lane >= distance) up_to += other;
  }
  if (lane == 31) sums[warp] = up_to;
  __syncthreads();
  std::int32_t before = up_to - mine;
  for (int w = 0; w < warp; ++w) before += sums[w];
  for (int i = begin; i < end; ++i) {
    const std::int32_t here = p.count[i];
    p.count[i] = before;
    before += here;
  }
}

__global__ void __launch_bounds__(block_threads) place_kernel(const Pass p) {
  __shared__ std::int32_t next[warps][buckets];
  count_warps(p, next);
  if (const int d = static_cast<int>(threadIdx.x); d < p.width) {
    std::int32_t before = p.count[d * p.blocks + static_cast<int>(blockIdx.x)];
    for (int w = 0; w < warps; ++w) {
      const std::int32_t here = next[w][d];
      next[w][d] = before;
      before += here;
    }
  }
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int first = static_cast<int>(blockIdx.x) * of_block + warp * of_warp + lane;
  for (int r = 0; r < rounds; ++r) {
    const int i = first + 32 * r;
    const unsigned there = __ballot_sync(~0u, i < p.n);
    if (i < p.n) {
      const int position = p.position(i), d = p.digit_of(position);
      const unsigned same = __match_any_sync(there, d), earlier = same & ((1u << lane) - 1);
      p.to[next[warp][d] + __popc(earlier)] = position;
      __syncwarp(there);
      if (earlier == 0) next[warp][d] += __popc(same);
      __syncwarp(there);
    }
  }
}

}  // namespace

bool pass(Stream& stream, std::int32_t* to, const std::int32_t* from, std::int64_t n, Digit digit,
          std::int32_t* count) {
  const std::int64_t blocks = ceil_div(n, std::int64_t{of_block});
  const std::int64_t width = std::int64_t{digit.mask} + 1;
  if (n == 0 || width > buckets || width * blocks > INT32_MAX) return false;
  const Pass p{to, from, static_cast<int>(n), static_cast<int>(width), static_cast<int>(blocks), digit, count};
  const cudaStream_t queue = space_of(stream).cuda_stream();
  stream.count_launch();
  start_kernel(queue, "sort", count_kernel, {static_cast<unsigned>(blocks), block_threads}, p);
  stream.count_launch();
  start_kernel(queue, "sort", scan_kernel, {1, scan_threads}, p);
  stream.count_launch();
  start_kernel(queue, "sort", place_kernel, {static_cast<unsigned>(blocks), block_threads}, p);
  return true;
}

}  // namespace tessera::sorting
