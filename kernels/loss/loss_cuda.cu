// Cross entropy, one block of threads per row: online softmax (maximum and sum in one read). Then comes a second read,
// which replaces the logits by their gradient. It finds a row's first columns in shared memory and takes the others
// backwards, so that the cache still has those that were read last.
#include "kernels/base/bulk.cuh"
#include "kernels/base/columns.cuh"
#include "kernels/base/cuda.cuh"
#include "kernels/base/launch.hpp"
#include "kernels/base/math.hpp"
#include "kernels/base/packs.cuh"
#include "kernels/loss/back.hpp"

namespace tessera::loss {
namespace {

using columns::Lanes;

constexpr int block_threads = 512, warps = block_threads / 32, blocks_at_once = 3;

/// Exponential and rounding for fp32 logits: the project's own.
template <class T>
struct Exponential {
  __device__ static float of(float x) { return exp_of(x); }
  __device__ static void store(T* place, const float (&v)[columns::widest<T>]) {
    Lanes<T, columns::widest<T>> pack;
    for (int l = 0; l < columns::widest<T>; ++l) pack.value[l] = T(v[l]);
    pack.to(place);
  }
};
/// Exponential and rounding for bf16 logits: the GPU's exponential (2 ulp of fp32), and its rounding of pairs, which
/// gives the same bits as ours.
template <>
struct Exponential<bf16> {
  __device__ static float of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504f));
    return y;
  }
  __device__ static void store(bf16* place, const float (&v)[8]) {
    std::uint32_t pair[4];
    for (int i = 0; i < 4; ++i) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair[i]) : "f"(v[2 * i + 1]), "f"(v[2 * i]));
    *reinterpret_cast<uint4*>(place) = {pair[0], pair[1], pair[2], pair[3]};
  }
};

/// A running softmax: the largest number so far, and the sum of exponentials relative to it.
template <class T>
struct Peak {
  using E = Exponential<T>;
  float top = -3.402823466e38f, sum = 0;

  template <int n>
  __device__ void add(const float (&x)[n]) {
    float highest = x[0];
    for (int i = 1; i < n; ++i) highest = x[i] > highest ? x[i] : highest;
    if (highest > top) {
      sum *= E::of(top - highest);
      top = highest;
    }
    float part[n];
    for (int i = 0; i < n; ++i) part[i] = E::of(x[i] - top);
    for (int width = n / 2; width > 0; width /= 2)
      for (int i = 0; i < width; ++i) part[i] += part[i + width];
    sum += part[0];
  }
  __device__ void add(const Peak& other) {
    const float higher = top > other.top ? top : other.top;
    sum = sum * E::of(top - higher) + other.sum * E::of(other.top - higher);
    top = higher;
  }
};

template <class T>
__device__ Peak<T> over_block(Peak<T> mine) {
  for (int lane = 16; lane > 0; lane /= 2) {
    const Peak<T> other{__shfl_xor_sync(0xFFFFFFFFu, mine.top, lane), __shfl_xor_sync(0xFFFFFFFFu, mine.sum, lane)};
    // Both partners add in the same order, so that all lanes end with the same bits.
    Peak<T> both = threadIdx.x & lane ? other : mine;
    both.add(threadIdx.x & lane ? mine : other);
    mine = both;
  }
  __shared__ Peak<T> all[warps];
  if (threadIdx.x % 32 == 0) all[threadIdx.x / 32] = mine;
  __syncthreads();
  Peak<T> whole = all[0];
  for (int w = 1; w < warps; ++w) whole.add(all[w]);
  return whole;
}

template <class T>
struct Rows {
  float* losses;
  T* dlogits;
  const T* logits;
  const std::int32_t* targets;
  int vocabulary, padded;
  int held_columns;     ///< the first of each row, which shared memory holds
  const double* scale;  ///< null without dlogits
};

template <class T, int lanes>
__device__ void load(float (&x)[lanes], const T* place) {
  const auto pack = Lanes<T, lanes>::at(place);
  for (int l = 0; l < lanes; ++l) x[l] = float(pack.value[l]);
}

template <class T>
constexpr int step = block_threads * columns::widest<T>;  ///< columns that a block reads at once
/// Steps of a block that its shared memory holds, where three blocks share a multiprocessor's 228 kB.
constexpr int most_pieces = (72 << 10) / (block_threads * 16);

/// A row of logits whose first columns are prefetched to shared memory by bulk copies, one for each step of the block.
template <class T>
struct HeldRow {
  const T *all, *held;
  int held_columns;
  bulk::Arrival* arrived;

  /// The columns from `column` on, which are ready when it returns.
  __device__ const T* at(int column) {
    if (column >= held_columns) return all + column;
    arrived[column / step<T>].wait();
    return held + column;
  }
  /// A block must not end before its copies have arrived.
  __device__ void await() {
    for (int column = 0; column < held_columns; column += step<T>) at(column);
  }
};
/// Starts the copies of its first columns. Called by all threads of a block.
template <class T>
__device__ HeldRow<T> start_copies(const T* row, int held_columns) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ bulk::Arrival arrived[most_pieces];
  T* const to = reinterpret_cast<T*>(memory);
  if (threadIdx.x == 0) {
    const int pieces = (held_columns + step<T> - 1) / step<T>;
    for (int i = 0; i < pieces; ++i) arrived[i].init();
    for (int i = 0; i < pieces; ++i) {
      const int first = i * step<T>, columns = min(step<T>, held_columns - first);
      arrived[i].fetch(to + first, row + first, static_cast<std::uint32_t>(columns * sizeof(T)));
    }
  }
  __syncthreads();
  return {row, to, held_columns, arrived};
}

template <class T>
__device__ Peak<T> row_peak(const Rows<T>& p, HeldRow<T>& row) {
  constexpr int lanes = columns::widest<T>;
  const int whole_packs = p.vocabulary / lanes * lanes;
  float x[lanes];
  Peak<T> mine;
  for (int column = static_cast<int>(threadIdx.x) * lanes; column < whole_packs; column += step<T>) {
    load(x, row.at(column));
    mine.add(x);
  }
  // The rest of the vocabulary is shorter than a pack.
  if (const int column = whole_packs + static_cast<int>(threadIdx.x); column < p.vocabulary) {
    const float one[1] = {float(*row.at(column))};
    mine.add(one);
  }
  return over_block(mine);
}

template <class T>
__device__ void row_gradient(const Rows<T>& p, HeldRow<T>& row, const Peak<T>& peak) {
  using E = Exponential<T>;
  constexpr int lanes = columns::widest<T>;
  const std::int64_t at = std::int64_t{blockIdx.x} * p.padded;
  const int target = p.targets[blockIdx.x];
  const float scale = static_cast<float>(*p.scale), share = scale / peak.sum;
  float x[lanes];
  const int last = (p.padded - 1) / step<T> * step<T> + static_cast<int>(threadIdx.x) * lanes;
  for (int column = last; column >= 0; column -= step<T>) {
    if (column >= p.padded) continue;
    load(x, row.at(column));
    for (int l = 0; l < lanes; ++l) x[l] = E::of(x[l] - peak.top) * share;
    if (target >= column && target < column + lanes)
      for (int l = 0; l < lanes; ++l) x[l] -= column + l == target ? scale : 0.0f;
    if (column + lanes > p.vocabulary)
      for (int l = 0; l < lanes; ++l) x[l] = column + l < p.vocabulary ? x[l] : 0.0f;
    E::store(p.dlogits + at + column, x);
  }
}

/// A row that has no target.
template <class T>
__device__ void no_loss(const Rows<T>& p) {
  constexpr int lanes = columns::widest<T>;
  if (threadIdx.x == 0) p.losses[blockIdx.x] = 0;
  if (p.dlogits == nullptr) return;
  const float zeros[lanes] = {};
  T* const row = p.dlogits + std::int64_t{blockIdx.x} * p.padded;
  for (int column = static_cast<int>(threadIdx.x) * lanes; column < p.padded; column += block_threads * lanes)
    Exponential<T>::store(row + column, zeros);
}

template <class T>
__global__ void __launch_bounds__(block_threads, blocks_at_once) row_kernel(const Rows<T> p) {
  const T* const z = p.logits + std::int64_t{blockIdx.x} * p.padded;
  if (p.targets[blockIdx.x] == no_target) return no_loss(p);
  const float wanted = float(z[p.targets[blockIdx.x]]);  // read before dlogits, which may be the same memory
  HeldRow<T> row = start_copies(z, p.held_columns);
  const Peak<T> peak = row_peak(p, row);
  if (threadIdx.x == 0) p.losses[blockIdx.x] = log_of(peak.sum) + (peak.top - wanted);
  if (p.dlogits != nullptr)
    row_gradient(p, row, peak);
  else
    row.await();
}

template <class T>
void start(Stream& stream, const Tensor& losses, const Tensor& dlogits, const Tensor& logits, const Tensor& targets,
           std::int64_t vocabulary, const Tensor& scale) {
  const int padded = static_cast<int>(logits.columns());
  const int held = std::min(padded, most_pieces * step<T>), bytes = held * static_cast<int>(sizeof(T));
  const bool holds = bulk::fits(bytes);
  const Rows<T> p{.losses = losses.as<float>(),
                  .dlogits = dlogits ? dlogits.as<T>() : nullptr,
                  .logits = logits.as<T>(),
                  .targets = targets.as<std::int32_t>(),
                  .vocabulary = static_cast<int>(vocabulary),
                  .padded = padded,
                  .held_columns = holds ? held : 0,
                  .scale = dlogits ? scale.as<double>() : nullptr};
  start_kernel(space_of(stream).cuda_stream(), "row_losses", row_kernel<T>,
               {static_cast<unsigned>(logits.rows()), block_threads, static_cast<std::size_t>(holds ? bytes : 0)}, p);
}

constexpr int sum_threads = 1024;

__global__ void __launch_bounds__(sum_threads) sum_kernel(double* sum, const float* losses, std::int64_t rows) {
  double mine = 0;
  for (std::int64_t r = threadIdx.x; r < rows; r += sum_threads) mine += static_cast<double>(losses[r]);
  __shared__ double all[sum_threads / 32];
  const double warp = packs::warp_sum(mine);
  if (threadIdx.x % 32 == 0) all[threadIdx.x / 32] = warp;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  const double total = packs::warp_sum(all[threadIdx.x]);
  if (threadIdx.x == 0) *sum += total;
}

}  // namespace

bool row_losses(Stream& stream, const Tensor& losses, const Tensor& dlogits, const Tensor& logits,
                const Tensor& targets, std::int64_t vocabulary, const Tensor& scale) {
  const bool fits = logits.type != DType::f64 && logits.columns() % 8 == 0 && logits.columns() < 1 << 30;
  if (!fits || logits.rows() == 0 || !columns::aligned(logits) || !columns::aligned(dlogits)) return false;
  stream.count_launch();
  if (logits.type == DType::bf16)
    start<bf16>(stream, losses, dlogits, logits, targets, vocabulary, scale);
  else
    start<float>(stream, losses, dlogits, logits, targets, vocabulary, scale);
  return true;
}

bool add_losses(Stream& stream, double* sum, const Tensor& losses) {
  if (losses.type != DType::f32) return false;
  stream.count_launch();
  start_kernel(space_of(stream).cuda_stream(), "add_losses", sum_kernel, {1, sum_threads}, sum, losses.as<float>(),
               losses.elements());
  return true;
}

}  // namespace tessera::loss
