// The exact sum of squares of many tensors in one launch that reads each element once. |x| = M 2^(L - 150) with M below
// 2^41 for the exponents [L, L + 18) of a window: both halves of M are squared and multiplied as integers, and each
// thread adds up what lies in its warp's window, which is laid by the first numbers. The few that lie elsewhere are
// taken in narrower windows, of nine exponents each, from the warp's largest down.
#include <algorithm>

#include "kernels/base/columns.cuh"
#include "kernels/base/launch.hpp"
#include "kernels/reduce/back.hpp"

namespace tessera::reduce {
namespace {

constexpr int threads = 256, warps = threads / 32, lanes = 4, packs = 4, mine = lanes * packs;
constexpr int exponents = 9;                                    // of a narrow window
constexpr int wide_exponents = 18, above_first = 3, half = 21;  // of the wide one; half of M's bits
static_assert(24 + wide_exponents - 1 <= 2 * half && ExactSum::limbs <= threads);
constexpr std::int64_t chunk = threads * mine, most_blocks = 660;  // five a multiprocessor of an H200, as many as fit
constexpr std::uint32_t infinity = 0x7F800000u;
constexpr unsigned everyone = ~0u;

/// The tensors of one launch: where each begins, its size, and its first chunk.
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

/// Magnitudes of the thread's share of a chunk; those that are not finite are counted and become 0.
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

/// words += value 2^at units, a 32-bit digit a word.
__device__ void add_at(unsigned long long* words, std::uint64_t value, int at) {
  const std::uint64_t low = (value & 0xFFFFFFFFu) << (at % 32), high = ((value >> 32) << (at % 32)) + (low >> 32);
  words[at / 32] += low & 0xFFFFFFFFu;
  words[at / 32 + 1] += high & 0xFFFFFFFFu;
  if (high >> 32 != 0) words[at / 32 + 2] += high >> 32;
}

/// Adds the squares of a warp's numbers to its words, a narrow window at a time.
__device__ void add_windows(unsigned long long* words, std::uint32_t (&x)[mine]) {
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
      // A denormal has the least exponent and no leading bit.
      const bool denormal = m < 0x800000u;
      const std::uint32_t whole = denormal ? m : (m & 0x7FFFFFu) | 0x800000u;
      const std::uint32_t shift = denormal ? 0 : (m >> 23) - lowest;
      const bool taken = m >= least;
      sum.add_square(taken ? whole << shift : 0);
      m = taken ? 0 : m;
    }
    const std::uint64_t parts[3] = {warp_sum(sum.low), warp_sum(sum.middle), warp_sum(sum.high)};
    if (threadIdx.x % 32 != 0) continue;
    for (int i = 0; i < 3; ++i) add_at(words, parts[i], 2 * static_cast<int>(lowest) + 32 * i);
  }
}

/// A warp's wide window, and each thread's sums in it: of squares of the upper and lower halves, and of their products.
struct Window {
  std::uint32_t lowest = 0;  ///< exponent; 0: no window yet
  std::uint64_t upper = 0, cross = 0, lower = 0;

  /// Adds the squares of those that lie in the window, and makes them 0. Returns the largest of the others.
  __device__ std::uint32_t take(std::uint32_t (&x)[mine]) {
    const std::uint32_t least = lowest << 23, range = lowest == 0 ? 0 : std::uint32_t{wide_exponents} << 23;
    std::uint32_t largest = 0;
#pragma unroll
    for (std::uint32_t& m : x) {
      const bool inside = m - least < range;
      const std::uint32_t whole = inside ? (m & 0x7FFFFFu) | 0x800000u : 0, shift = (m >> 23) - lowest;
      const std::uint32_t a = __funnelshift_rc(whole, 0, half - shift),
                          b = __funnelshift_lc(0, whole, shift) & ((1u << half) - 1);
      upper += std::uint64_t{a} * a;
      cross += std::uint64_t{a} * b;
      lower += std::uint64_t{b} * b;
      m = inside ? 0 : m;
      largest = max(largest, m);
    }
    return largest;
  }
  /// Moves the sums of all threads to the warp's words.
  __device__ void empty_into(unsigned long long* words) {
    const auto all = [&](std::uint64_t& sum, int at) {
      const std::uint64_t low = warp_sum(static_cast<std::uint32_t>(sum)),
                          high = warp_sum(static_cast<std::uint32_t>(sum >> 32));
      sum = 0;
      if (threadIdx.x % 32 != 0) return;
      add_at(words, low, 2 * static_cast<int>(lowest) + at);
      add_at(words, high, 2 * static_cast<int>(lowest) + at + 32);
    };
    if (lowest == 0) return;
    all(lower, 0), all(cross, half + 1), all(upper, 2 * half);
  }
  /// Lays it around `largest`, a number that is not 0, with some room above.
  __device__ void lay(std::uint32_t largest) {
    constexpr int below = wide_exponents - 1 - above_first;
    lowest = static_cast<std::uint32_t>(max(static_cast<int>(largest >> 23) - below, 1));
  }
};

__global__ void __launch_bounds__(threads) squares(unsigned long long* words, const Pieces pieces) {
  __shared__ unsigned long long sums[warps][ExactSum::limbs];
  for (int i = static_cast<int>(threadIdx.x); i < warps * ExactSum::limbs; i += threads)
    sums[i / ExactSum::limbs][i % ExactSum::limbs] = 0;
  __syncthreads();
  unsigned long long* const own = sums[threadIdx.x / 32];
  int lost = 0, piece = 0;
  Window window;
  for (std::int64_t c = blockIdx.x; c < pieces.first[pieces.count]; c += gridDim.x) {
    while (c >= pieces.first[piece + 1]) ++piece;
    std::uint32_t x[mine];
    load(x, pieces.x[piece], pieces.size[piece], (c - pieces.first[piece]) * chunk, lost);
    const std::uint32_t largest = __reduce_max_sync(everyone, window.take(x));
    if (largest == 0) continue;
    if (largest > window.lowest << 23) {
      window.empty_into(own);
      window.lay(largest);
    }
    add_windows(own, x);
  }
  window.empty_into(own);
  lost = __reduce_add_sync(everyone, lost);
  if (threadIdx.x % 32 == 0 && lost != 0) atomicAdd(words + ExactSum::limbs, static_cast<unsigned long long>(lost));
  __syncthreads();
  if (threadIdx.x >= ExactSum::limbs) return;
  unsigned long long total = 0;
  for (int w = 0; w < warps; ++w) total += sums[w][threadIdx.x];
  if (total != 0) atomicAdd(words + threadIdx.x, total);
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
