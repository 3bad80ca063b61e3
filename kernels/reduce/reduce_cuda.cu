// The exact sum of squares of many tensors, in one launch that reads each element once. A warp adds the squares of 512
// elements at a time, in one of two ways:
// - all nonzero elements within 22 binades of the largest (nearly always): a square has at most 48 bits, so two sums in
//   fp64, of the squares rounded to a coarse unit and of the rounding errors, are both exact;
// - else: exponents are split into windows [L, L + 9), in which |x| = M 2^(L - 150) with an integer M below 2^32, so
//   that M^2 is added exactly. The warp visits the windows of its elements from the largest down.
#include <algorithm>

#include "kernels/base/columns.cuh"
#include "kernels/base/cuda.cuh"
#include "kernels/base/launch.hpp"
#include "kernels/reduce/back.hpp"

namespace tessera::reduce {
namespace {

constexpr int threads = 256, warps = threads / 32, lanes = 4, packs = 4, mine = lanes * packs;
constexpr int exponents = 9, windows = 29;
constexpr int binades = 22, coarse_bits = 44, fine_bits = coarse_bits + 48;  // below the top of the largest square
constexpr int digits = 2 * 254 / 32 + 5;  // of 32 bits, each in a word of 64; bit 0 counts 2^-300
static_assert(windows * exponents >= 254 && digits <= threads && digits <= ExactSum::limbs);
constexpr std::int64_t chunk = threads * mine;
constexpr std::int64_t most_blocks = 6336;  // ten waves on an H200, so that the tail is short
constexpr std::uint32_t infinity = 0x7F800000u;
constexpr unsigned everyone = ~0u;

/// The tensors of one launch: the address, size and first chunk of each.
struct LaunchTensors {
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

/// `whole` is an integer below 2^53.
__device__ std::int64_t warp_sum(double whole) {
  std::int64_t x = __double2ll_rn(whole);
  for (int other = 16; other > 0; other /= 2) x += __shfl_xor_sync(everyone, x, other);
  return x;
}

/// sums += value 2^at units.
__device__ void add_at(std::uint64_t* sums, std::uint64_t value, int at) {
  const std::uint64_t low = (value & 0xFFFFFFFFu) << (at % 32), high = ((value >> 32) << (at % 32)) + (low >> 32);
  sums[at / 32] += low & 0xFFFFFFFFu;
  sums[at / 32 + 1] += high & 0xFFFFFFFFu;
  sums[at / 32 + 2] += high >> 32;
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

__device__ double power_of_two(int exponent) { return __hiloint2double((1023 + exponent) << 20, 0); }

/// Adds a warp's squares of magnitudes whose exponents are from `exponent` - binades to `exponent`, and of zeros.
__device__ void add_near(std::uint64_t* sums, const std::uint32_t (&x)[mine], int exponent) {
  const int top = 2 * exponent - 252;  // squares are below 2^top
  const double rounder = 1.5 * power_of_two(top - coarse_bits + 52);
  double coarse = 0, fine = 0;
#pragma unroll
  for (const std::uint32_t m : x) {
    const double value = __uint_as_float(m), rounded = __fma_rn(value, value, rounder) - rounder;
    coarse += rounded;
    fine += __fma_rn(value, value, -rounded);
  }
  const std::int64_t high = warp_sum(coarse * power_of_two(coarse_bits - top));
  const std::int64_t low = warp_sum(fine * power_of_two(fine_bits - top));
  if (threadIdx.x % 32 != 0) return;
  const __int128 total = (static_cast<__int128>(high) << (fine_bits - coarse_bits)) + low;
  const int at = top - fine_bits + 300;
  add_at(sums, static_cast<std::uint64_t>(total), at);
  add_at(sums, static_cast<std::uint64_t>(total >> 64), at + 64);
}

__device__ std::uint32_t largest_of(const std::uint32_t (&x)[mine]) {
  std::uint32_t largest = 0;
#pragma unroll
  for (const std::uint32_t m : x) largest = max(largest, m);
  return __reduce_max_sync(everyone, largest);
}

/// Adds a warp's squares of any magnitudes.
__device__ void add_windows(std::uint64_t* sums, std::uint32_t (&x)[mine], std::uint32_t largest) {
  for (; largest != 0; largest = largest_of(x)) {
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
    const int at = static_cast<int>(2 * lowest);
    add_at(sums, low, at);
    add_at(sums, middle, at + 32);
    add_at(sums, high, at + 64);
  }
}

__device__ void add_squares(std::uint64_t* sums, std::uint32_t (&x)[mine]) {
  const std::uint32_t largest = largest_of(x);
  if (largest == 0) return;
  std::uint32_t least = ~0u;  // of those that are not zero, less one
#pragma unroll
  for (const std::uint32_t m : x) least = min(least, m - 1);
  least = __reduce_min_sync(everyone, least) + 1;
  const int exponent = static_cast<int>(largest >> 23);
  if (exponent > binades && exponent - static_cast<int>(least >> 23) <= binades)
    add_near(sums, x, exponent);
  else
    add_windows(sums, x, largest);
}

__global__ void __launch_bounds__(threads) squares(unsigned long long* words, const LaunchTensors pieces) {
  __shared__ std::uint64_t sums[warps][digits];
  for (int i = static_cast<int>(threadIdx.x); i < warps * digits; i += threads) sums[i / digits][i % digits] = 0;
  __syncthreads();
  int lost = 0, piece = 0;
  for (std::int64_t c = blockIdx.x; c < pieces.first[pieces.count]; c += gridDim.x) {
    while (c >= pieces.first[piece + 1]) ++piece;
    std::uint32_t x[mine];
    load(x, pieces.x[piece], pieces.size[piece], (c - pieces.first[piece]) * chunk, lost);
    add_squares(sums[threadIdx.x / 32], x);
  }
  lost = __reduce_add_sync(everyone, lost);
  if (threadIdx.x % 32 == 0 && lost != 0) atomicAdd(words + ExactSum::limbs, static_cast<unsigned long long>(lost));
  __syncthreads();
  if (threadIdx.x >= digits) return;
  std::uint64_t total = 0;
  for (int w = 0; w < warps; ++w) total += sums[w][threadIdx.x];
  if (total != 0) atomicAdd(words + threadIdx.x, static_cast<unsigned long long>(total));
}

void start(Stream& stream, const Tensor& words, const LaunchTensors& pieces) {
  stream.count_launch();
  const std::int64_t chunks = pieces.first[pieces.count];
  if (stream.dry() || chunks == 0) return;
  const auto blocks = static_cast<unsigned>(std::min(chunks, most_blocks));
  auto* const to = reinterpret_cast<unsigned long long*>(words.as<std::int64_t>());
  start_kernel(space_of(stream).cuda_stream(), "squares", squares, {blocks, threads}, to, pieces);
}

}  // namespace

bool add_squares(Stream& stream, const Tensor& words, std::span<const Tensor> xs) {
  if (!std::ranges::all_of(xs, [](const Tensor& x) { return x.type == DType::f32 && columns::aligned(x); }))
    return false;
  for (std::size_t begin = 0; begin < xs.size(); begin += LaunchTensors::most) {
    LaunchTensors pieces;
    pieces.first[0] = 0;
    for (const Tensor& x : xs.subspan(begin, std::min<std::size_t>(LaunchTensors::most, xs.size() - begin))) {
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
