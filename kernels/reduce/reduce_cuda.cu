// The exact sum of squares of many tensors, in one launch that reads each element once. Exponents are split into
// windows [L, L + 9), in which |x| = M 2^(L - 150) with an integer M below 2^32, so M^2 is added exactly. A warp visits
// the windows of its elements from the largest down; gradients need two or three.
#include <algorithm>

#include "kernels/base/columns.cuh"
#include "kernels/base/launch.hpp"
#include "kernels/reduce/back.hpp"

namespace tessera::reduce {
namespace {

constexpr int threads = 256, warps = threads / 32, lanes = 4, packs = 4, mine = lanes * packs;
constexpr int exponents = 9, windows = 29, digits = 3;  // digits of 32 bits in a window's sum
static_assert(windows * exponents >= 254 && windows * digits <= threads);
constexpr std::int64_t chunk = threads * mine, most_blocks = 1056;  // 8 blocks a multiprocessor of an H200
constexpr std::uint32_t infinity = 0x7F800000u;
constexpr unsigned everyone = ~0u;

/// The tensors of one launch: the address, size and first chunk of each.
struct Pieces {
  static constexpr int most = 64;
  const float* x[most];
  std::int64_t size[most], first[most + 1];
  int count = 0;
};

/// A sum of squares of 32-bit numbers.
struct Wide {
  std::uint32_t low = 0, middle = 0, high = 0;
  __device__ void add_square(std::uint32_t m) {
    asm("mad.lo.cc.u32 %0, %3, %3, %0;\n\tmadc.hi.cc.u32 %1, %3, %3, %1;\n\taddc.u32 %2, %2, 0;"
        : "+r"(low), "+r"(middle), "+r"(high)
        : "r"(m));
  }
};

__device__ std::uint64_t warp_sum(std::uint32_t digit) {
  const std::uint64_t high = __reduce_add_sync(everyone, digit >> 16);
  return __reduce_add_sync(everyone, digit & 0xFFFFu) + (high << 16);
}

/// Loads magnitudes of the thread's share of a chunk; values that are not finite are counted and become 0.
__device__ void load(std::uint32_t (&x)[mine], const float* values, std::int64_t size, std::int64_t begin, int& lost) {
#pragma unroll
  for (int p = 0; p < packs; ++p) {
    const std::int64_t i = begin + (p * threads + static_cast<int>(threadIdx.x)) * lanes;
    columns::Lanes<float, lanes> pack{};
    if (i + lanes <= size) {
      pack = columns::Lanes<float, lanes>::at(values + i);
    } else {
      for (int l = 0; l < lanes; ++l)
        if (i + l < size) pack.value[l] = values[i + l];
    }
    for (int l = 0; l < lanes; ++l) x[p * lanes + l] = __float_as_uint(pack.value[l]) & 0x7FFFFFFFu;
  }
#pragma unroll
  for (std::uint32_t& m : x) {
    if (m < infinity) continue;
    m = 0;
    ++lost;
  }
}

/// Adds the sums of one warp; each window has a row of digits.
__device__ void add_windows(unsigned long long* sums, std::uint32_t (&x)[mine]) {
  while (true) {
    std::uint32_t largest = 0;
#pragma unroll
    for (const std::uint32_t m : x) largest = max(largest, m);
    largest = __reduce_max_sync(everyone, largest);
    if (largest == 0) return;
    const std::uint32_t exponent = max(largest >> 23, 1u), window = (exponent - 1) / exponents;
    const std::uint32_t lowest = window * exponents + 1, least = window == 0 ? 1 : lowest << 23;
    Wide sum;
#pragma unroll
    for (std::uint32_t& m : x) {
      // A denormal has the smallest exponent and no implicit leading bit.
      const bool denormal = m < 0x800000u;
      const std::uint32_t whole = denormal ? m : (m & 0x7FFFFFu) | 0x800000u;
      const std::uint32_t shift = denormal ? 0 : (m >> 23) - lowest;
      const bool taken = m >= least;
      sum.add_square(taken ? whole << shift : 0);
      m = taken ? 0 : m;
    }
    const std::uint64_t low = warp_sum(sum.low), middle = warp_sum(sum.middle), high = warp_sum(sum.high);
    if (threadIdx.x % 32 != 0) continue;
    sums[window * digits] += low;
    sums[window * digits + 1] += middle;
    sums[window * digits + 2] += high;
  }
}

/// words += value 2^at units; each word holds a 32-bit digit.
__device__ void add_at(unsigned long long* words, std::uint64_t value, int at) {
  const std::uint64_t low = (value & 0xFFFFFFFFu) << (at % 32), high = ((value >> 32) << (at % 32)) + (low >> 32);
  const std::uint64_t parts[3] = {low & 0xFFFFFFFFu, high & 0xFFFFFFFFu, high >> 32};
  for (int i = 0; i < 3; ++i)
    if (parts[i] != 0) atomicAdd(words + at / 32 + i, parts[i]);
}

__global__ void __launch_bounds__(threads) squares(unsigned long long* words, const Pieces pieces) {
  __shared__ unsigned long long sums[warps][windows * digits];
  for (int i = static_cast<int>(threadIdx.x); i < warps * windows * digits; i += threads)
    sums[i / (windows * digits)][i % (windows * digits)] = 0;
  __syncthreads();
  int lost = 0, piece = 0;
  for (std::int64_t c = blockIdx.x; c < pieces.first[pieces.count]; c += gridDim.x) {
    while (c >= pieces.first[piece + 1]) ++piece;
    std::uint32_t x[mine];
    load(x, pieces.x[piece], pieces.size[piece], (c - pieces.first[piece]) * chunk, lost);
    add_windows(sums[threadIdx.x / 32], x);
  }
  lost = __reduce_add_sync(everyone, lost);
  if (threadIdx.x % 32 == 0 && lost != 0) atomicAdd(words + ExactSum::limbs, static_cast<unsigned long long>(lost));
  __syncthreads();
  if (threadIdx.x >= windows * digits) return;
  std::uint64_t total = 0;
  for (int w = 0; w < warps; ++w) total += sums[w][threadIdx.x];
  const int window = static_cast<int>(threadIdx.x) / digits, digit = static_cast<int>(threadIdx.x) % digits;
  add_at(words, total, 2 * (window * exponents + 1) + 32 * digit);
}

void start(Stream& stream, const Tensor& words, const Pieces& pieces) {
  stream.count_launch();
  const std::int64_t chunks = pieces.first[pieces.count];
  if (stream.dry() || chunks == 0) return;
  const auto blocks = static_cast<unsigned>(std::min(chunks, most_blocks));
  auto* const to = reinterpret_cast<unsigned long long*>(words.as<std::int64_t>());
  squares<<<blocks, threads, 0, space_of(stream).cuda_stream()>>>(to, pieces);
}

}  // namespace

bool add_squares(Stream& stream, const Tensor& words, std::span<const Tensor> xs) {
  if (!std::ranges::all_of(xs, [](const Tensor& x) { return x.type == DType::f32 && columns::aligned(x); }))
    return false;
  for (std::size_t begin = 0; begin < xs.size(); begin += Pieces::most) {
    Pieces pieces;
    pieces.first[0] = 0;
    for (const Tensor& x : xs.subspan(begin, std::min<std::size_t>(Pieces::most, xs.size() - begin))) {
      const int i = pieces.count++;
      pieces.x[i] = x.as<float>();
      pieces.size[i] = x.elements();
      pieces.first[i + 1] = pieces.first[i] + ceil_div(x.elements(), chunk);
    }
    start(stream, words, pieces);
  }
  return true;
}

}  // namespace tessera::reduce
