// The passes before and after the gradients for heads of 128 columns.
#include "kernels/attention/wide_rows_sm90a.cuh"

#include <cuda_bf16.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "kernels/base/cuda.cuh"
#include "kernels/base/index.hpp"

namespace tessera::attention::wide {
namespace {

constexpr int threads = 256, width = 128, pack = 8, lanes = width / pack;  ///< a pack: 16 bytes of bf16

struct alignas(16) Pack {
  __nv_bfloat162 two[pack / 2];
  __device__ float operator[](int i) const {
    const float2 f = __bfloat1622float2(two[i / 2]);
    return i % 2 == 0 ? f.x : f.y;
  }
};

/// Extents of a call.
struct Extents {
  std::int64_t sequences, length, heads, kv_heads, strips;
  explicit Extents(const AttentionShape& s)
      : sequences(s.sequences), length(s.length), heads(s.heads), kv_heads(s.kv_heads),
        strips(ceil_div(s.length, QueryRows::strip_rows)) {}
};

std::int64_t blocks_of(std::int64_t work) { return ceil_div(work, threads); }

/// 16 lanes a row; rows of a token side by side. Rows beyond the sequence get weights of zero.
__global__ void __launch_bounds__(threads)
    sums_kernel(Extents e, QueryRows rows, const Pack* dout, const Pack* out, const float* lse) {
  const std::int64_t row = (static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x) / lanes;
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const std::int64_t head = row % e.heads, padded = e.strips * QueryRows::strip_rows, token = row / e.heads % padded,
                     sequence = row / e.heads / padded;
  if (row == 0 && lane == 0) rows.added[rows.total] = 0;
  const bool present = sequence < e.sequences, real = present && token < e.length;
  float sum = 0;
  if (real) {
    const std::int64_t at = ((sequence * e.length + token) * e.heads + head) * lanes + lane;
    const Pack dy = dout[at], y = out[at];
    for (int i = 0; i < pack; ++i) sum = fmaf(dy[i], y[i], sum);
  }
  for (int other = 1; other < lanes; other *= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, other);
  if (!present || lane != 0) return;
  const std::int64_t of = sequence * e.heads + head;
  const int strip = static_cast<int>(of * e.strips + token / QueryRows::strip_rows);
  const int within = static_cast<int>(token % QueryRows::strip_rows);
  float* const to = rows.sums_of(strip);
  to[within] =
      real ? lse[of * e.length + token] * std::numbers::log2e_v<float> : std::numeric_limits<float>::infinity();
  to[QueryRows::strip_rows + within] = sum;
  if (within == 0) rows.added[strip] = 0;
}

/// A block for each strip of dQ. Four threads of a warpgroup hold 8 columns of two rows side by side.
__global__ void __launch_bounds__(threads)
    queries_kernel(Extents e, QueryRows rows, Pack* dqkv, std::int64_t packs, float scale) {
  constexpr int quads = 32, chunks = lanes / 2, panels = 2, below = 8;
  const std::int64_t strip = blockIdx.x, head = strip / e.strips % e.heads, sequence = strip / e.strips / e.heads;
  const float4* const from = reinterpret_cast<const float4*>(rows.dq + strip * QueryRows::strip_values);
  for (int i = static_cast<int>(threadIdx.x); i < panels * quads * chunks; i += threads) {
    const int chunk = i % chunks, quad = i / chunks % quads, panel = i / chunks / quads;
    const float4* const four = from + ((panel * chunks + chunk) * quads + quad) * 4;
    Pack upper, lower;
    for (int j = 0; j < 4; ++j) {
      const float4 f = four[j];
      upper.two[j] = __floats2bfloat162_rn(f.x * scale, f.y * scale);
      lower.two[j] = __floats2bfloat162_rn(f.z * scale, f.w * scale);
    }
    const std::int64_t token = strip % e.strips * QueryRows::strip_rows + quad / 8 * 16 + quad % 8;
    Pack* const to = dqkv + (sequence * e.length + token) * packs + head * lanes + panel * chunks + chunk;
    if (token < e.length) to[0] = upper;
    if (token + below < e.length) to[below * packs] = lower;
  }
}

/// A pack a thread: the sum over the heads that share keys.
__global__ void __launch_bounds__(threads) shared_kernel(Extents e, const Pack* dkv, Pack* dqkv) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x, sharing = e.heads / e.kv_heads;
  const std::int64_t lane = i % lanes, slot = i / lanes % (2 * e.kv_heads), token = i / lanes / (2 * e.kv_heads);
  if (token >= e.sequences * e.length) return;
  float sum[pack] = {};
  for (std::int64_t h = 0; h < sharing; ++h) {
    const Pack one = dkv[(token * 2 * e.heads + slot * sharing + h) * lanes + lane];
    for (int j = 0; j < pack; ++j) sum[j] += one[j];
  }
  Pack result;
  for (int j = 0; j < pack; j += 2) result.two[j / 2] = __floats2bfloat162_rn(sum[j], sum[j + 1]);
  dqkv[(token * (e.heads + 2 * e.kv_heads) + e.heads + slot) * lanes + lane] = result;
}

template <class... Parameters, class... Arguments>
void start(Stream& stream, void (*kernel)(Parameters...), std::int64_t blocks, const Arguments&... arguments) {
  start_kernel(static_cast<cudaStream_t>(stream.native()), "attention", kernel,
               {static_cast<unsigned>(blocks), threads}, arguments...);
}

}  // namespace

Workspace::Workspace(Arena& arena, const AttentionShape& s) {
  const std::int64_t strips = ceil_div(s.length, QueryRows::strip_rows);
  sums = arena.temp(DType::f32, {s.sequences, s.heads, strips, 2 * QueryRows::strip_rows});
  dq = arena.temp(DType::f32, {s.sequences, s.heads, strips, QueryRows::strip_values});
  added = arena.temp(DType::i32, {s.sequences * s.heads * strips + 1});
  if (s.kv_heads < s.heads)
    dkv = arena.temp(DType::bf16, {s.sequences * s.length, 2 * s.heads * s.head_dim});
}

QueryRows Workspace::rows() const {
  return {sums.as<float>(), dq.as<float>(), added.as<std::int32_t>(), static_cast<int>(added.elements() - 1)};
}

void prepare(Stream& stream, const AttentionShape& s, const QueryRows& rows, const Tensor& dout, const Tensor& out,
             const Tensor& lse) {
  start(stream, sums_kernel, blocks_of(std::int64_t{rows.total} * QueryRows::strip_rows * lanes), Extents(s), rows,
        static_cast<const Pack*>(dout.data), static_cast<const Pack*>(out.data), lse.as<float>());
}

void conclude(Stream& stream, const AttentionShape& s, const QueryRows& rows, const Tensor& dkv, const Tensor& dqkv) {
  start(stream, queries_kernel, rows.total, Extents(s), rows, static_cast<Pack*>(dqkv.data), s.columns() / pack,
        1 / std::sqrt(static_cast<float>(s.head_dim)));
  if (s.kv_heads < s.heads)
    start(stream, shared_kernel, blocks_of(s.sequences * s.length * 2 * s.kv_heads * lanes), Extents(s),
          static_cast<const Pack*>(dkv.data), static_cast<Pack*>(dqkv.data));
}

}  // namespace tessera::attention::wide
