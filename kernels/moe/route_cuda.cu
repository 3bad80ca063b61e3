// Chooses experts, a warp a token, and counts slots in shared memory. The bits are those of route.cpp: exponentials and
// divisions are element by element. Sums ascend in one lane after the other's place, and keys are integers.
#include "kernels/base/cuda.cuh"
#include "kernels/base/packs.cuh"
#include "kernels/moe/back.hpp"

namespace tessera::moe {
namespace {

constexpr int warps = 4;
constexpr std::int64_t fewest_experts = 32, most_experts = 1024, most_counted = 12288;

/// What follows in the order of choice is less: the key first, then the higher index.
__device__ std::uint64_t place_of(std::uint32_t key, int index) {
  return (std::uint64_t{key} << 32) | (0xFFFFFFFFu - static_cast<std::uint32_t>(index));
}
__device__ int index_of(std::uint64_t place) {
  return static_cast<int>(0xFFFFFFFFu - static_cast<std::uint32_t>(place));
}

__device__ std::uint64_t warp_max(std::uint64_t value) {
  for (int distance = 16; distance > 0; distance /= 2) {
    const std::uint64_t other = __shfl_xor_sync(~0u, value, distance);
    value = other > value ? other : value;
  }
  return value;
}

/// The greatest place below `last` of `count` keys, in every lane.
__device__ std::uint64_t next(const std::uint32_t* keys, int count, std::uint64_t last, int lane) {
  std::uint64_t best = 0;
  for (int i = lane; i < count; i += 32) {
    const std::uint64_t place = place_of(keys[i], i);
    if (place < last && place > best) best = place;
  }
  return warp_max(best);
}

__device__ float ascending_sum(const float* values, int count) {
  float sum = 0;
#pragma unroll 8
  for (int i = 0; i < count; ++i) sum += values[i];
  return sum;
}

struct Choice {
  const float *logits, *bias;  // bias may be null
  float *scores, *log_sum, *total, *weight;  // total: of sigmoids
  std::int32_t* expert;
  std::int64_t tokens, k;
  int experts;
  ScoreRule rule;
  bool renormalize;

  __device__ float logit(std::int64_t m, int e) const {
    const float z = logits[m * experts + e];
    return rule.logits == DType::bf16 ? static_cast<float>(bf16(z)) : z;
  }

  /// Fills s with the token's scores.
  __device__ void score(float* s, std::int64_t m, int lane) const {
    float top = -INFINITY;
    for (int e = lane; e < experts; e += 32) top = logit(m, e) > top ? logit(m, e) : top;
    for (int distance = 16; distance > 0; distance /= 2) {
      const float other = __shfl_xor_sync(~0u, top, distance);
      top = other > top ? other : top;
    }
    for (int e = lane; e < experts; e += 32) s[e] = exp_of(logit(m, e) - top);
    __syncwarp();
    const float sum = ascending_sum(s, experts);
    __syncwarp();
    const bool sigmoids = rule.scores == Scores::sigmoid;
    for (int e = lane; e < experts; e += 32) s[e] = sigmoids ? sigmoid(logit(m, e)) : s[e] / sum;
    __syncwarp();
    for (int e = lane; e < experts; e += 32) scores[m * experts + e] = s[e];
    if (lane == 0) log_sum[m] = top + log_of(sum);
    if (!sigmoids) return;
    const float all = ascending_sum(s, experts);
    if (lane == 0) total[m] = all;
  }

  __device__ float value(const float* s, int e) const { return bias == nullptr ? s[e] : s[e] + bias[e]; }

  /// The key of the sum of a group's two largest values, or of its only one.
  __device__ std::uint32_t group_key(const float* s, const std::uint32_t* keys, int begin, int each) const {
    if (each == 1) return keys[begin];
    int first = begin, second = begin + 1;
    if (keys[second] > keys[first]) {
      first = begin + 1;
      second = begin;
    }
    for (int e = begin + 2; e < begin + each; ++e) {
      if (keys[e] > keys[first]) {
        second = first;
        first = e;
      } else if (keys[e] > keys[second]) {
        second = e;
      }
    }
    return key_of(value(s, first) + value(s, second));
  }

  /// Masks the experts of groups that are left out.
  __device__ void leave_out(const float* s, std::uint32_t* keys, std::uint32_t* of_group, int lane) const {
    const int groups = static_cast<int>(rule.groups), each = experts / groups;
    for (int g = lane; g < groups; g += 32) of_group[g] = group_key(s, keys, g * each, each);
    __syncwarp();
    std::uint64_t last = ~std::uint64_t{0};
    for (std::int64_t i = 0; i < rule.top_groups; ++i) last = next(of_group, groups, last, lane);
    for (int e = lane; e < experts; e += 32)
      if (place_of(of_group[e / each], e / each) < last && keys[e] != nan_key<float>()) keys[e] = masked_key<float>();
    __syncwarp();
  }

  __device__ void choose(const float* s, const std::uint32_t* keys, std::int64_t m, int lane) const {
    float sum = 0;
    std::uint64_t last = ~std::uint64_t{0};
    for (std::int64_t j = 0; j < k; ++j) {
      last = next(keys, experts, last, lane);
      sum += s[index_of(last)];
      if (lane == 0) expert[m * k + j] = index_of(last);
    }
    sum += least_sum<float>();
    __syncwarp();
    for (std::int64_t j = lane; j < k; j += 32) {
      const float own = s[expert[m * k + j]];
      weight[m * k + j] = (renormalize ? own / sum : own) * static_cast<float>(rule.scale);
    }
  }
};

__global__ void __launch_bounds__(warps * 32) choose_by_warp(const Choice c) {
  extern __shared__ float memory[];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t m = std::int64_t{blockIdx.x} * warps + warp;
  if (m >= c.tokens) return;
  float* const s = memory + warp * 3 * c.experts;
  auto* const keys = reinterpret_cast<std::uint32_t*>(s + c.experts);
  c.score(s, m, lane);
  for (int e = lane; e < c.experts; e += 32) keys[e] = key_of(c.value(s, e));
  __syncwarp();
  if (c.rule.top_groups < c.rule.groups) c.leave_out(s, keys, keys + c.experts, lane);
  c.choose(s, keys, m, lane);
}

/// One block a sequence. Integers add to the same sum in any order.
__global__ void count_slots(std::int32_t* load, const std::int32_t* expert, std::int64_t slots, int experts) {
  extern __shared__ std::int32_t count[];
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += static_cast<int>(blockDim.x)) count[e] = 0;
  __syncthreads();
  const std::int64_t first = std::int64_t{blockIdx.x} * slots;
  for (std::int64_t i = threadIdx.x; i < slots; i += blockDim.x) atomicAdd(count + expert[first + i], 1);
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += static_cast<int>(blockDim.x))
    load[std::int64_t{blockIdx.x} * experts + e] = count[e];
}

}  // namespace

bool choose_experts(Stream& stream, const RouterShape& shape, const Routing& routing, const Tensor& logits,
                    const Tensor& bias) {
  if (logits.type != DType::f32 || shape.experts < fewest_experts || shape.experts > most_experts) return false;
  const bool sigmoids = shape.rule.scores == Scores::sigmoid;
  const Choice choice{logits.as<float>(),
                      bias ? bias.as<float>() : nullptr,
                      routing.scores.as<float>(),
                      routing.log_sum.as<float>(),
                      sigmoids ? routing.total.as<float>() : nullptr,
                      routing.weight.as<float>(),
                      routing.expert.as<std::int32_t>(),
                      shape.tokens(),
                      shape.top_k,
                      static_cast<int>(shape.experts),
                      shape.rule,
                      shape.renormalize};
  stream.count_launch();
  if (stream.dry() || shape.tokens() == 0) return true;
  const auto blocks = static_cast<unsigned>(ceil_div(shape.tokens(), std::int64_t{warps}));
  const std::size_t bytes = 3 * static_cast<std::size_t>(shape.experts) * warps * sizeof(float);
  start_kernel(space_of(stream).cuda_stream(), "route", choose_by_warp, {blocks, warps * 32, bytes}, choice);
  return true;
}

bool count_load(Stream& stream, const RouterShape& shape, const Routing& routing) {
  if (shape.experts > most_counted) return false;
  stream.count_launch();
  if (stream.dry() || shape.sequences == 0) return true;
  const std::size_t bytes = static_cast<std::size_t>(shape.experts) * sizeof(std::int32_t);
  start_kernel(space_of(stream).cuda_stream(), "route_load", count_slots,
               {static_cast<unsigned>(shape.sequences), 1024, bytes}, routing.load.as<std::int32_t>(),
               routing.expert.as<std::int32_t>(), shape.length * shape.top_k, static_cast<int>(shape.experts));
  return true;
}

}  // namespace tessera::moe
