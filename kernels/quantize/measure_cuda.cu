#include "kernels/activation/by_instructions.cuh"
#include "kernels/quantize/measure_patch.hpp"
#include "kernels/quantize/patch.cuh"

namespace tessera::quantizer::measure {
namespace {

/// What the threads of a block gather of a patch. Neighbouring lanes add to different copies of a sum, since values of
/// one exponent are frequent.
struct Gathered {
  static constexpr int copies = 4, parts = 5;  // a count, and the halves of two sums of squares
  std::uint32_t sum[parts][256][copies];
  std::uint32_t top[most_blocks];
  float step[most_blocks];
  union {
    std::uint8_t draws[patch_edge][patch_edge];
    std::uint64_t errors[2][most_blocks];  ///< of formats that choose, which draw nothing
  };
};
static_assert(sizeof(Gathered) <= 48 * 1024);

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
    auto* const words = &gathered_.sum[0][0][0];
    for (unsigned i = threadIdx.x; i < sizeof gathered_.sum / sizeof *words; i += patch_edge) words[i] = 0;
    __syncthreads();
  }
  __device__ void add(Sum sum, std::uint32_t exponent, std::uint64_t square) const {
    const unsigned copy = threadIdx.x % Gathered::copies;
    const int part = sum == Sum::values ? 1 : 3;
    if (sum == Sum::values) atomicAdd(&gathered_.sum[0][exponent][copy], 1u);
    const auto low = static_cast<std::uint32_t>(square);
    auto high = static_cast<std::uint32_t>(square >> 32);
    if (low != 0) {
      const std::uint32_t before = atomicAdd(&gathered_.sum[part][exponent][copy], low);
      if (before + low < before) ++high;
    }
    if (high != 0) atomicAdd(&gathered_.sum[part + 1][exponent][copy], high);
  }
  __device__ void finish(const Counts& counts, QuantizerSums& sums) const {
    add_of_warp(sums.elements, counts.elements);
    add_of_warp(sums.zeros, counts.zeros);
    add_of_warp(sums.nan, counts.nan);
    add_of_warp(sums.infinite, counts.infinite);
    add_of_warp(sums.saturated, counts.saturated);
    add_of_warp(sums.underflow, counts.underflow);
    const std::uint32_t most = __reduce_max_sync(device::whole_warp, counts.amax);
    if (threadIdx.x % 32 == 0 && most != 0)
      atomicMax(reinterpret_cast<unsigned long long*>(&sums.amax), static_cast<unsigned long long>(most));
    for (int e = static_cast<int>(threadIdx.x); e < 256; e += patch_edge) {
      add_to(sums.exponents[e], total(0, e));
      each_digit(total(1, e) + (total(2, e) << 32), e,
                 [&](int limb, std::uint64_t digit) { add_to(sums.values[limb], digit); });
      each_digit(total(3, e) + (total(4, e) << 32), e,
                 [&](int limb, std::uint64_t digit) { add_to(sums.errors[limb], digit); });
    }
  }

 private:
  __device__ static void add_of_warp(std::uint64_t& word, std::uint32_t mine) {
    const std::uint32_t all = __reduce_add_sync(device::whole_warp, mine);
    if (threadIdx.x % 32 == 0) add_to(word, all);
  }
  __device__ std::uint64_t total(int part, int exponent) const {
    std::uint64_t all = 0;
    for (const std::uint32_t one : gathered_.sum[part][exponent]) all += one;
    return all;
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
