// AdamW with four elements per thread in accesses of 16 bytes; a block takes many chunks of the table.
#include <algorithm>

#include "kernels/base/columns.cuh"
#include "kernels/base/cuda.cuh"
#include "kernels/base/index.hpp"
#include "kernels/base/launch.hpp"
#include "kernels/optim/back.hpp"

namespace tessera::optim {
namespace {

using columns::Lanes;

constexpr int lanes = 4, block_threads = 256, resident_blocks = 4;  // a multiprocessor holds so many
constexpr std::int64_t most_blocks = 16 * resident_blocks * 132;    // 16 waves on an H200, so that the tail is short

/// Updates elements [i, i + lanes) of a run, without those behind its end.
template <class M>
__device__ void update_lanes(const AdamWTable::Row& run, std::int64_t i, const AdamWFactors& factors) {
  float* const master = run.master + i;
  const float* const gradient = run.gradient + i;
  M *const first = static_cast<M*>(run.m) + i, *const second = static_cast<M*>(run.v) + i;
  if (i + lanes > run.count) {
    for (int l = 0; i + l < run.count; ++l) {
      factors.update(master[l], first[l], second[l], gradient[l], run.weight_decay);
      if (run.rounded) run.rounded[i + l] = bf16(master[l]);
    }
    return;
  }
  auto p = Lanes<float, lanes>::at(master);
  auto m = Lanes<M, lanes>::at(first), v = Lanes<M, lanes>::at(second);
  const auto g = Lanes<float, lanes>::at(gradient);
  for (int l = 0; l < lanes; ++l)
    factors.update(p.value[l], m.value[l], v.value[l], g.value[l], run.weight_decay);
  p.to(master), m.to(first), v.to(second);
  if (!run.rounded) return;
  Lanes<bf16, lanes> rounded;
  for (int l = 0; l < lanes; ++l) rounded.value[l] = bf16(p.value[l]);
  rounded.to(run.rounded + i);
}

/// Elements [begin, begin + AdamWTable::chunk) of a run, without those behind its end. By all threads of a block.
template <class M>
__device__ void update_chunk(const AdamWTable::Row& run, std::int64_t begin, const AdamWFactors& factors) {
  const std::int64_t end = begin + AdamWTable::chunk < run.count ? begin + AdamWTable::chunk : run.count;
#pragma unroll 1
  for (std::int64_t i = begin + threadIdx.x * lanes; i < end; i += block_threads * lanes)
    update_lanes<M>(run, i, factors);
}

/// A block takes every gridDim-th chunk: it computes the factors once, and neighbouring chunks are updated at the same
/// time.
template <class M>
__global__ void __launch_bounds__(block_threads, resident_blocks) step_kernel(const AdamWStep s) {
  if (s.clip->skip != 0) return;
  const AdamWFactors factors(s);
  AdamWTable::Row run{};
  std::int64_t next = 0;  // chunk behind the run
  for (std::int64_t chunk = blockIdx.x; chunk < s.table.chunks; chunk += gridDim.x) {
    if (chunk >= next) {
      run = s.row_of(chunk);
      next = run.first_chunk + ceil_div(run.count, AdamWTable::chunk);
    }
    update_chunk<M>(run, (chunk - run.first_chunk) * AdamWTable::chunk, factors);
  }
  __syncthreads();  // every thread has read the old clock
  if (threadIdx.x != 0) return;
  __threadfence();
  if (atomicAdd(reinterpret_cast<unsigned long long*>(s.table.finished), 1ull) + 1 == gridDim.x) {
    *s.table.finished = 0;
    *s.clock = s.now();
  }
}

template <class M>
void start(Stream& stream, const AdamWStep& s) {
  const auto blocks = static_cast<unsigned>(std::min(s.blocks(), most_blocks));
  start_kernel(space_of(stream).cuda_stream(), "adamw_step", step_kernel<M>, {blocks, block_threads}, s);
}

}  // namespace

bool adamw_step(Stream& stream, const AdamWStep& s) {
  if (!s.table.aligned) return false;
  stream.count_launch();
  if (s.table.moments == DType::f32)
    start<float>(stream, s);
  else
    start<bf16>(stream, s);
  return true;
}

}  // namespace tessera::optim
