#include "kernels/activation/by_instructions.cuh"
#include "kernels/quantize/measure_patch.hpp"
#include "kernels/quantize/patch.cuh"

namespace tessera::quantizer::measure {
namespace {

/// What the threads of a block gather of a patch. The exponents of most of its values lie in a window below that of its
/// largest. A thread counts these in bytes of its own, and adds their squares in registers. The rest go to shared sums.
struct Gathered {
  std::uint32_t mine[SquareWindow::exponents / 4][patch_edge];  ///< of thread i [..][i]: a byte an exponent
  std::uint32_t counted[256];
  std::uint64_t squares[2][ExactSum::limbs];
  std::uint32_t top[most_blocks], largest;
  float step[most_blocks];
  union {
    std::uint8_t draws[patch_edge][patch_edge];
    std::uint64_t errors[2][most_blocks];  ///< of formats that choose, which draw nothing
  };
};
static_assert(sizeof(Gathered) <= 48 * 1024);
static_assert(patch_edge <= 255 && patch_edge <= SquareWindow::most);

__device__ void add_to(std::uint64_t& word, std::uint64_t value) {
  if (value != 0) atomicAdd(reinterpret_cast<unsigned long long*>(&word), static_cast<unsigned long long>(value));
}

/// Thread i has column, or row, i of the patch.
class ThreadBlock {
 public:
  struct Formulas {
    __device__ static float gelu(float x) { return activation::fast_gelu(x); }
    __device__ static float gelu_slope(float x) { return activation::fast_gelu_slope(x); }
    __device__ static float sigmoid(float x) { return activation::fast_sigmoid(x); }
  };

  /// A thread's own part of the sums.
  struct Share {
    Counts counts;
    int least;  ///< exponent of the window, at least 1: subnormal numbers are not in it
    SquareWindow squares[2];
  };

  __device__ explicit ThreadBlock(Gathered& gathered) : gathered_(gathered) {}

  template <class F>
  __device__ void each_column(const F& f) const {
    f(static_cast<int>(threadIdx.x));
    __syncthreads();
  }
  template <class F>
  __device__ void each_row(const F& f) const {
    each_column(f);
  }
  template <class F>
  __device__ void each_block(int blocks, const F& f) const {
    for (int block = static_cast<int>(threadIdx.x); block < blocks; block += patch_edge) f(block);
    __syncthreads();
  }
  __device__ std::uint32_t& top(int block) const { return gathered_.top[block]; }
  __device__ float& step(int block) const { return gathered_.step[block]; }
  __device__ std::uint64_t& error(int encoding, int block) const { return gathered_.errors[encoding][block]; }
  __device__ void add_error(int encoding, int block, std::uint32_t error) const {
    atomicAdd(reinterpret_cast<unsigned long long*>(&gathered_.errors[encoding][block]),
              static_cast<unsigned long long>(error));
  }
  __device__ std::uint8_t& draw(int row, int column) const { return gathered_.draws[row][column]; }

  /// Raises the top of a block that spans `columns` columns, those of neighbouring threads.
  __device__ void raise(int block, int columns, std::uint32_t magnitude) const {
    const unsigned lanes = columns < 32 ? static_cast<unsigned>(columns) : 32u;
    std::uint32_t most = magnitude;
    for (unsigned step = 1; step < lanes; step *= 2) most = device::shuffled_larger(most, static_cast<int>(step));
    if (threadIdx.x % lanes == 0) atomicMax(&gathered_.top[block], most);
  }
  __device__ void clear_sums() const {
    for (auto& words : gathered_.mine) words[threadIdx.x] = 0;
    for (unsigned e = threadIdx.x; e < 256; e += patch_edge) gathered_.counted[e] = 0;
    for (unsigned i = threadIdx.x; i < 2 * ExactSum::limbs; i += patch_edge) (&gathered_.squares[0][0])[i] = 0;
    if (threadIdx.x == 0) gathered_.largest = 0;
    __syncthreads();
  }
  /// The largest magnitude that this thread knows of: no value of the patch is above those of all threads.
  __device__ void bound(std::uint32_t magnitude) const {
    const std::uint32_t most = __reduce_max_sync(device::whole_warp, magnitude);
    if (threadIdx.x % 32 == 0) atomicMax(&gathered_.largest, most);
    __syncthreads();
  }
  __device__ Share share() const {
    const int least = static_cast<int>(gathered_.largest >> 23) - (SquareWindow::exponents - 1);
    return {.counts = {}, .least = least > 1 ? least : 1, .squares = {}};
  }
  template <Sum sum>
  __device__ void add(Share& share, std::uint32_t exponent, std::uint64_t square) const {
    constexpr int which = sum == Sum::values ? 0 : 1;
    const unsigned above = exponent - static_cast<unsigned>(share.least);
    if (above < SquareWindow::exponents) {
      share.squares[which].add(square, static_cast<int>(above));
      if constexpr (sum == Sum::values) gathered_.mine[above / 4][threadIdx.x] += 1u << 8 * (above % 4);
    } else {
      if constexpr (sum == Sum::values) atomicAdd(&gathered_.counted[exponent], 1u);
      add_digits(which, square, bit_of_square(static_cast<int>(exponent)));
    }
  }
  __device__ void finish(const Share& share, QuantizerSums& sums) const {
    const Counts& counts = share.counts;
    add_of_warp(sums.elements, counts.elements);
    add_of_warp(sums.zeros, counts.zeros);
    add_of_warp(sums.nan, counts.nan);
    add_of_warp(sums.infinite, counts.infinite);
    add_of_warp(sums.saturated, counts.saturated);
    add_of_warp(sums.underflow, counts.underflow);
    const std::uint32_t most = __reduce_max_sync(device::whole_warp, counts.amax);
    if (threadIdx.x % 32 == 0 && most != 0)
      atomicMax(reinterpret_cast<unsigned long long*>(&sums.amax), static_cast<unsigned long long>(most));
    gather_windows(share);
    __syncthreads();
    const int i = static_cast<int>(threadIdx.x);
    for (int e = i; e < 256; e += patch_edge) add_to(sums.exponents[e], gathered_.counted[e]);
    if (i >= ExactSum::limbs) return;
    each_digit(gathered_.squares[0][i], 32 * i, [&](int at, std::uint64_t digit) { add_to(sums.values[at], digit); });
    each_digit(gathered_.squares[1][i], 32 * i, [&](int at, std::uint64_t digit) { add_to(sums.errors[at], digit); });
  }

 private:
  __device__ static void add_of_warp(std::uint64_t& word, std::uint32_t mine) {
    const std::uint32_t all = __reduce_add_sync(device::whole_warp, mine);
    if (threadIdx.x % 32 == 0) add_to(word, all);
  }
  __device__ void add_digits(int which, std::uint64_t value, int bit) const {
    each_digit(value, bit, [&](int limb, std::uint64_t digit) { add_to(gathered_.squares[which][limb], digit); });
  }
  /// Adds a warp's windows, alike for all threads, to the shared sums: lane i the count of exponent i and part i of the
  /// squares.
  __device__ void gather_windows(const Share& share) const {
    const unsigned lane = threadIdx.x % 32;
    std::uint32_t count = 0;
    for (unsigned word = 0; word < SquareWindow::exponents / 4; ++word) {
      const std::uint32_t bytes = gathered_.mine[word][threadIdx.x];
      // Two sums at once, each below 2^16.
      const std::uint32_t even = __reduce_add_sync(device::whole_warp, bytes & 0x00FF00FFu),
                          odd = __reduce_add_sync(device::whole_warp, bytes >> 8 & 0x00FF00FFu);
      if (lane / 4 == word) count = (lane % 2 == 0 ? even : odd) >> (lane % 4 < 2 ? 0 : 16) & 0xFFFFu;
    }
    if (count != 0) atomicAdd(&gathered_.counted[share.least + static_cast<int>(lane)], count);
    for (int which = 0; which < 2; ++which) {
      std::uint32_t part = 0;
      for (int i = 0; i < SquareWindow::parts; ++i) {
        const std::uint32_t all = __reduce_add_sync(device::whole_warp, share.squares[which].part(i));
        if (lane == static_cast<unsigned>(i)) part = all;
      }
      if (part != 0) add_digits(which, part, bit_of_square(share.least) + 16 * static_cast<int>(lane));
    }
  }

  Gathered& gathered_;
};

template <class F, Side side, class Source, Stage stage>
__global__ void __launch_bounds__(patch_edge)
    measure_kernel(const __grid_constant__ Job job, const __grid_constant__ F format) {
  __shared__ Gathered gathered;
  measure_patch<F, side, Source, stage>(format, ThreadBlock(gathered), job, blockIdx.x);
}

}  // namespace

void launch(Stream& stream, FormatId format, Side side, Kind kind, Stage stage, const Job& job) {
  with_kernel(format, side, kind, stage, [&]<class F, Side s, class Source, Stage g>(const F& of) {
    device::start<patch_edge>(stream, measure_kernel<F, s, Source, g>, job.patches.count, job, of);
  });
}

}  // namespace tessera::quantizer::measure
