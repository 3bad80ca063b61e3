// Norms of rows of real training sizes: every value is read once, 16 bytes at a time, and stays in registers.
#include <cuda_pipeline.h>

#include "kernels/base/columns.cuh"
#include "kernels/base/cuda.cuh"
#include "kernels/base/launch.hpp"
#include "kernels/normalize/back.hpp"

namespace tessera::normalize {
namespace {

using columns::aligned;
using columns::Lanes;
using columns::wide;

constexpr int most_packs = 4, block_threads = 128, most_threads = 512;

/// The threads that share one row: `width` of them, a multiple of 32.
struct RowThreads {
  int width, thread, row_of_block, row;

  __device__ RowThreads()
      : width(static_cast<int>(blockDim.x)),
        thread(static_cast<int>(threadIdx.x)),
        row_of_block(static_cast<int>(threadIdx.y)),
        row(static_cast<int>(blockIdx.x * blockDim.y + threadIdx.y)) {}

  /// The sum over the row's threads, in a fixed order. All threads of the block must call it.
  template <int count>
  __device__ void add(float (&value)[count]) const {
    add_in_warps(value);
    if (width == 32) return;
    __shared__ float all[count][most_threads / 32];
    const int warps = width / 32, first = row_of_block * warps;
    __syncthreads();
    if (thread % 32 == 0)
      for (int i = 0; i < count; ++i) all[i][first + thread / 32] = value[i];
    __syncthreads();
    for (int i = 0; i < count; ++i) {
      value[i] = 0;
      for (int w = 0; w < warps; ++w) value[i] += all[i][first + w];
    }
  }

 protected:
  template <int count>
  __device__ static void add_in_warps(float (&value)[count]) {
    for (float& v : value)
      for (int lane = 16; lane > 0; lane /= 2) v += __shfl_xor_sync(0xFFFFFFFFu, v, lane);
  }
};

/// RowThreads whose rows do not wait for one another: each row has a barrier of its own. A multiprocessor has few
/// barriers, which limits its blocks, so this suits kernels whose blocks stay until the end. A row has at most 256
/// threads.
struct ApartRowThreads : RowThreads {
  static constexpr int most_warps = 8, most_rows = 7;  ///< of a row; of a block with more than one warp a row

  /// All threads of the block must call it.
  __device__ ApartRowThreads() {
    // Warps that a row does not have add 0.
    for (int i = row_of_block * width + thread; i < 2 * most_rows * most_warps / 2;
         i += width * static_cast<int>(blockDim.y))
      (&sums()[0][0][0])[i] = {};
    __syncthreads();
  }

  /// The sums of both values over the row's threads, in the order of RowThreads::add(). All threads of the row must
  /// call it.
  __device__ void add(float (&value)[2]) {
    // The lower half of a warp adds up the first value, the upper half the second.
    const int lane = thread % 32;
    const bool upper = lane >= 16;
    float mine = upper ? value[1] : value[0];
    mine += __shfl_xor_sync(0xFFFFFFFFu, upper ? value[0] : value[1], 16);
    for (int distance = 8; distance > 0; distance /= 2) mine += __shfl_xor_sync(0xFFFFFFFFu, mine, distance);
    if (width == 32) {
      value[0] = __shfl_sync(0xFFFFFFFFu, mine, 0);
      value[1] = __shfl_sync(0xFFFFFFFFu, mine, 16);
      return;
    }
    // Two arrays alternate: a thread that writes to one again has passed a barrier that follows all reads of it.
    float4* const row_sums = sums()[turn_][row_of_block];
    turn_ ^= 1;
    if (lane % 16 == 0) reinterpret_cast<float*>(row_sums)[thread / 32 * 2 + lane / 16] = mine;
    asm volatile("bar.sync %0, %1;" ::"r"(row_of_block + 1), "r"(width) : "memory");
    value[0] = value[1] = 0;
#pragma unroll
    for (int w = 0; w < most_warps / 2; ++w) {
      const float4 two = row_sums[w];
      value[0] += two.x, value[1] += two.y;
      value[0] += two.z, value[1] += two.w;
    }
  }

 private:
  /// Both sums of two warps in a float4.
  __device__ static float4 (&sums())[2][most_rows][most_warps / 2] {
    __shared__ float4 all[2][most_rows][most_warps / 2];
    return all;
  }
  int turn_ = 0;
};

/// This thread's share of a row, in fp32.
template <class T, int packs>
struct Values {
  static constexpr int lanes = columns::widest<T>;
  float v[packs][lanes];

  template <class F>
  __device__ static void each(const RowThreads& t, int n, const F& f) {
#pragma unroll
    for (int p = 0; p < packs; ++p)
      if (const int column = (p * t.width + t.thread) * lanes; column < n) f(p, column);
  }
};

/// A block's dynamic shared memory.
extern __shared__ uint4 memory[];

/// Rows at a fixed distance on their way through shared memory, `depth` of them at a time, of `count` matrices. Every
/// thread copies its own share and waits for no other thread's.
template <class T, int packs, int count>
class Ahead {
  using Pack = Lanes<T, columns::widest<T>>;
  static_assert(sizeof(Pack) == sizeof(uint4));

 public:
  static constexpr int depth = packs <= 2 ? 4 : 2;  ///< two blocks of gradients fit a multiprocessor
  static constexpr std::size_t bytes(unsigned threads) { return sizeof(Pack) * threads * depth * packs * count; }

  /// Begins with the row at `t`. A block has at most `threads`.
  __device__ Ahead(const RowThreads& t, const T* const (&matrices)[count], int rows, int n, int step, int threads)
      : t_(t),
        rows_(rows),
        n_(n),
        step_(step),
        threads_(threads),
        first_(memory + t.row_of_block * t.width + t.thread) {
    for (int m = 0; m < count; ++m) matrices_[m] = matrices[m];
    for (int i = 0; i < depth; ++i) fetch();
  }

  /// Waits for the next row.
  __device__ void wait() const { __pipeline_wait_prior(depth - 1); }
  /// This thread's share of it, until fetch().
  __device__ Pack share(int m, int i) const { return *reinterpret_cast<const Pack*>(place(m, i)); }
  /// Starts to copy the row behind those under way to where the next row is.
  __device__ void fetch() {
    if (t_.row < rows_)
      Values<T, packs>::each(t_, n_, [&](int i, int column) {
        const std::int64_t at = std::int64_t{t_.row} * n_ + column;
#pragma unroll
        for (int m = 0; m < count; ++m) __pipeline_memcpy_async(place(m, i), matrices_[m] + at, sizeof(Pack));
      });
    __pipeline_commit();
    t_.row += step_;
    slot_ = (slot_ + 1) % depth;
  }

 private:
  __device__ uint4* place(int m, int i) const { return first_ + ((slot_ * count + m) * packs + i) * threads_; }

  RowThreads t_;
  const T* matrices_[count];
  int rows_, n_, step_, threads_;
  uint4* first_;
  int slot_ = 0;
};

template <class T>
struct Forward {
  T *y, *sum;
  float *mean, *rstd;
  const T *x, *branch, *weight, *bias;
  int rows, n;
  float eps, inverse_n;
};

/// This thread's share of the sum of x and branch, rounded and stored; of x where there is no branch. Zeros behind the
/// last row.
template <class T, int packs>
__device__ Values<T, packs> summed(const RowThreads& t, const Forward<T>& p) {
  constexpr int lanes = columns::widest<T>;
  Values<T, packs> x{};
  if (t.row >= p.rows) return x;
  x.each(t, p.n, [&](int i, int column) {
    const std::int64_t at = std::int64_t{t.row} * p.n + column;
    auto stream = wide(Lanes<T, lanes>::at(p.x + at));
    if (p.branch != nullptr) {
      const auto branch = wide(Lanes<T, lanes>::at(p.branch + at));
      for (int l = 0; l < lanes; ++l) stream.value[l] += branch.value[l];
      const auto sum = columns::rounded<T>(stream.value);
      sum.to(p.sum + at);
      stream = wide(sum);
    }
    for (int l = 0; l < lanes; ++l) x.v[i][l] = stream.value[l];
  });
  return x;
}

template <class T, Norm kind, int packs>
__global__ void __launch_bounds__(most_threads) forward_kernel(const Forward<T> p) {
  constexpr int lanes = columns::widest<T>;
  using V = Values<T, packs>;
  const RowThreads t;
  const V x = summed<T, packs>(t, p);
  float mean[1] = {};
  if (kind == Norm::layer) {
    V::each(t, p.n, [&](int i, int) {
      for (float v : x.v[i]) mean[0] += v;
    });
    t.add(mean);
    mean[0] *= p.inverse_n;
  }
  float square[1] = {};
  V::each(t, p.n, [&](int i, int) {
    for (float v : x.v[i]) square[0] += (v - mean[0]) * (v - mean[0]);
  });
  t.add(square);
  if (t.row >= p.rows) return;
  const float rstd = 1.0f / ::sqrtf(square[0] * p.inverse_n + p.eps);
  V::each(t, p.n, [&](int i, int column) {
    const auto weight = wide(Lanes<T, lanes>::at(p.weight + column));
    float y[lanes];
    for (int l = 0; l < lanes; ++l) y[l] = (x.v[i][l] - mean[0]) * rstd * weight.value[l];
    if (p.bias != nullptr) {
      const auto bias = wide(Lanes<T, lanes>::at(p.bias + column));
      for (int l = 0; l < lanes; ++l) y[l] += bias.value[l];
    }
    columns::rounded<T>(y).to(p.y + std::int64_t{t.row} * p.n + column);
  });
  if (t.thread != 0) return;
  if (kind == Norm::layer) p.mean[t.row] = mean[0];
  p.rstd[t.row] = rstd;
}

template <class T>
struct Backward {
  T* dx;
  const T *dy, *x, *weight;
  const float *mean, *rstd;
  int rows, n;
  float inverse_n;
};

/// What is known of a row before its sums.
struct Moments {
  float mean = 0, rstd = 0;  ///< mean 0 for rms

  template <class T>
  __device__ static Moments at(const Backward<T>& p, int row) {
    if (row >= p.rows) return {};
    return {p.mean != nullptr ? p.mean[row] : 0.0f, p.rstd[row]};
  }
};

/// The matrices of which backward reads a row.
enum Factor { of_x, of_dy, of_dx, factors };

/// dx of the row at `t`; nothing if `t` is behind the last row. share(factor, pack) is this thread's share of the row.
/// each(pack, lane, slope, normal) gets the slope before it is multiplied by the weight.
template <class T, Norm kind, int packs, class Threads, class Share, class Each>
__device__ void row_backward(Threads& t, const Backward<T>& p, const Moments& row, const Share& share,
                             const Each& each) {
  constexpr int lanes = columns::widest<T>;
  using V = Values<T, packs>;
  V normal, slope;
  float sums[2] = {};  // of slope times normal, and of slope
  V::each(t, p.n, [&](int i, int column) {
    const auto weight = wide(Lanes<T, lanes>::at(p.weight + column));
    const auto x = wide(share(of_x, i)), dy = wide(share(of_dy, i));
    for (int l = 0; l < lanes; ++l) {
      normal.v[i][l] = (x.value[l] - row.mean) * row.rstd;
      each(i, l, dy.value[l], normal.v[i][l]);
      slope.v[i][l] = dy.value[l] * weight.value[l];
      sums[0] = ::fmaf(slope.v[i][l], normal.v[i][l], sums[0]);
      sums[1] += slope.v[i][l];
    }
  });
  t.add(sums);
  if (t.row >= p.rows) return;
  const float along = p.inverse_n * sums[0], average = kind == Norm::layer ? p.inverse_n * sums[1] : 0.0f;
  V::each(t, p.n, [&](int i, int column) {
    const auto dx = wide(share(of_dx, i));
    float d[lanes];
    for (int l = 0; l < lanes; ++l)
      d[l] = ::fmaf(row.rstd, ::fmaf(-along, normal.v[i][l], slope.v[i][l] - average), dx.value[l]);
    columns::rounded<T>(d).to(p.dx + std::int64_t{t.row} * p.n + column);
  });
}

template <class T, Norm kind, int packs>
__global__ void __launch_bounds__(most_threads) backward_kernel(const Backward<T> p) {
  constexpr int lanes = columns::widest<T>;
  const RowThreads t;
  Lanes<T, lanes> row[factors][packs] = {};
  if (t.row < p.rows)
    Values<T, packs>::each(t, p.n, [&](int i, int column) {
      const std::int64_t at = std::int64_t{t.row} * p.n + column;
      row[of_x][i] = Lanes<T, lanes>::at(p.x + at);
      row[of_dy][i] = Lanes<T, lanes>::at(p.dy + at);
      row[of_dx][i] = Lanes<T, lanes>::at(p.dx + at);
    });
  row_backward<T, kind, packs>(
      t, p, Moments::at(p, t.row), [&](Factor f, int i) { return row[f][i]; }, [](int, int, float, float) {});
}

template <class T>
struct Gradients {
  Backward<T> rows;
  float *weight_parts, *bias_parts;  ///< [blocks, C]; bias_parts null without a bias
};

/// Threads of a block. Rows of one pack per thread share a block, sized so that two blocks fit; wider rows have a block
/// each.
constexpr int gradient_threads = 448, gradient_width = 256;
template <int packs>
inline constexpr int most_gradient_threads = packs == 1 ? gradient_threads : gradient_width;

/// to[column] = the block's sum of a column: those of its rows of threads, added one after the other.
template <class T, int packs>
__device__ void store_sums(const RowThreads& t, int n, const Values<T, packs>& mine, float* to) {
  static_assert(Values<T, packs>::lanes * sizeof(float) <= sizeof(uint4) * Ahead<T, packs, factors>::depth * factors,
                "the sums of all rows have to fit where the rows were fetched to");
  float* const all = reinterpret_cast<float*>(memory);
  const int rows = static_cast<int>(blockDim.y), threads = t.width * rows;
  __syncthreads();
  mine.each(t, n, [&](int i, int column) {
    for (int l = 0; l < mine.lanes; ++l) all[t.row_of_block * n + column + l] = mine.v[i][l];
  });
  __syncthreads();
  for (int column = t.row_of_block * t.width + t.thread; column < n; column += threads) {
    float sum = all[column];
    for (int y = 1; y < rows; ++y) sum += all[y * n + column];
    to[column] = sum;
  }
}

/// Gradients: every block takes rows at a fixed distance and keeps the sums of its columns in registers.
template <class T, Norm kind, int packs>
__global__ void __launch_bounds__(most_gradient_threads<packs>, packs <= 2 ? 2 : 1)
    gradients_kernel(const Gradients<T> g) {
  const Backward<T>& p = g.rows;
  const int step = static_cast<int>(gridDim.x * blockDim.y);
  ApartRowThreads t;
  Values<T, packs> along{}, plain{};
  Ahead<T, packs, factors> ahead(t, {p.x, p.dy, p.dx}, p.rows, p.n, step, most_gradient_threads<packs>);
  Moments coming = Moments::at(p, t.row);
  for (; t.row < p.rows; t.row += step) {
    const Moments row = coming;
    coming = Moments::at(p, t.row + step);
    ahead.wait();
    row_backward<T, kind, packs>(
        t, p, row, [&](Factor f, int i) { return ahead.share(f, i); },
        [&](int i, int l, float slope, float normal) {
          along.v[i][l] = ::fmaf(slope, normal, along.v[i][l]);
          plain.v[i][l] += slope;
        });
    ahead.fetch();
  }
  store_sums(t, p.n, along, g.weight_parts + std::int64_t{blockIdx.x} * p.n);
  if (g.bias_parts != nullptr) store_sums(t, p.n, plain, g.bias_parts + std::int64_t{blockIdx.x} * p.n);
}

bool fits(const Tensor& x, std::initializer_list<Tensor> others) {
  const int lanes = x.type == DType::bf16 ? columns::widest<bf16> : columns::widest<float>;
  constexpr std::int64_t most_rows = 1 << 30;
  bool fit = x.type != DType::f64 && x.columns() % lanes == 0 && x.columns() <= 256 * most_packs * lanes &&
             x.rows() <= most_rows && aligned(x);
  for (const Tensor& t : others) fit = fit && aligned(t);
  return fit;
}

/// Calls f<packs>(threads) for forward() and backward(): one pack per thread, if that takes at most most_threads; rows
/// of few threads share a block. Few registers a thread give full occupancy: loads of some blocks hide the sums of
/// others.
template <class T, class F>
void with_threads(std::int64_t n, const F& f) {
  const std::int64_t all = ceil_div(n, columns::widest<T>);
  const auto width = static_cast<unsigned>(std::min(round_up(all, 32), std::int64_t{most_threads}));
  const dim3 threads(width, width < block_threads ? block_threads / width : 1);
  if (all <= width)
    f.template operator()<1>(threads);
  else
    f.template operator()<2>(threads);
}
/// Calls f<packs>(threads) for gradients(): one pack per thread, if that takes at most gradient_width threads.
template <class T, class F>
void with_gradient_threads(std::int64_t n, const F& f) {
  const std::int64_t all = ceil_div(n, columns::widest<T>);
  const auto width = static_cast<unsigned>(std::min(round_up(all, 32), std::int64_t{gradient_width}));
  switch (ceil_div(all, width)) {
    case 1:
      return f.template operator()<1>(dim3(width, gradient_threads / width));
    case 2:
      return f.template operator()<2>(dim3(width));
    case 3:
      return f.template operator()<3>(dim3(width));
    default:
      return f.template operator()<4>(dim3(width));
  }
}
unsigned blocks_of(std::int64_t rows, dim3 threads) { return static_cast<unsigned>(ceil_div(rows, threads.y)); }

/// Calls f<T, kind>() for bf16 and fp32.
template <class F>
void with_types(DType type, Norm kind, const F& f) {
  if (type == DType::bf16)
    kind == Norm::layer ? f.template operator()<bf16, Norm::layer>() : f.template operator()<bf16, Norm::rms>();
  else
    kind == Norm::layer ? f.template operator()<float, Norm::layer>() : f.template operator()<float, Norm::rms>();
}

template <class T>
T* place_of(const Tensor& t) {
  return t ? t.as<T>() : nullptr;
}

template <class T, Norm kind>
Backward<T> backward_of(const NormBackward& args) {
  return {args.dx.as<T>(),
          args.dy.as<T>(),
          args.x.as<T>(),
          args.weight.as<T>(),
          kind == Norm::layer ? args.mean.as<float>() : nullptr,
          args.rstd.as<float>(),
          static_cast<int>(args.x.rows()),
          static_cast<int>(args.x.columns()),
          1.0f / static_cast<float>(args.x.columns())};
}

}  // namespace

bool forward(Stream& stream, Norm kind, const NormForward& args) {
  const Tensor& x = args.x;
  if (!fits(x, {args.y, args.residual_out, args.branch, args.weight, args.bias})) return false;
  stream.count_launch();
  with_types(x.type, kind, [&]<class T, Norm k>() {
    const Forward<T> p{args.y.as<T>(),
                       args.branch ? args.residual_out.as<T>() : nullptr,
                       k == Norm::layer ? args.mean.as<float>() : nullptr,
                       args.rstd.as<float>(),
                       x.as<T>(),
                       place_of<T>(args.branch),
                       args.weight.as<T>(),
                       place_of<T>(args.bias),
                       static_cast<int>(x.rows()),
                       static_cast<int>(x.columns()),
                       static_cast<float>(args.eps),
                       1.0f / static_cast<float>(x.columns())};
    with_threads<T>(x.columns(), [&]<int packs>(dim3 threads) {
      start_kernel(space_of(stream).cuda_stream(), "norm_forward", forward_kernel<T, k, packs>,
                   {blocks_of(p.rows, threads), threads}, p);
    });
  });
  return true;
}

bool backward(Stream& stream, Norm kind, const NormBackward& args) {
  if (!fits(args.x, {args.dx, args.dy, args.weight})) return false;
  stream.count_launch();
  with_types(args.x.type, kind, [&]<class T, Norm k>() {
    const auto p = backward_of<T, k>(args);
    with_threads<T>(args.x.columns(), [&]<int packs>(dim3 threads) {
      start_kernel(space_of(stream).cuda_stream(), "norm_backward", backward_kernel<T, k, packs>,
                   {blocks_of(p.rows, threads), threads}, p);
    });
  });
  return true;
}

bool gradients(Stream& stream, Norm kind, const Gradient& dweight, const Gradient& dbias, const NormBackward& args,
               const Tensor& weight_parts, const Tensor& bias_parts) {
  const std::int64_t rows = args.x.rows(), n = args.x.columns(), blocks = columns::blocks_of(rows);
  if (!fits(args.x, {args.dx, args.dy, args.weight}) || blocks > weight_parts.rows()) return false;
  stream.count_launch();
  const cudaStream_t queue = space_of(stream).cuda_stream();
  with_types(args.x.type, kind, [&]<class T, Norm k>() {
    const Gradients<T> g{backward_of<T, k>(args), weight_parts.as<float>(),
                         place_of<float>(bias_parts)};
    with_gradient_threads<T>(n, [&]<int packs>(dim3 threads) {
      constexpr std::size_t bytes = Ahead<T, packs, factors>::bytes(most_gradient_threads<packs>);
      start_kernel(queue, "norm_gradients", gradients_kernel<T, k, packs>,
                   {static_cast<unsigned>(blocks), threads, bytes}, g);
    });
  });
  columns::start_add<float>(queue, dweight, weight_parts.as<float>(), rows, n);
  if (bias_parts) columns::start_add<float>(queue, dbias, bias_parts.as<float>(), rows, n);
  return true;
}

}  // namespace tessera::normalize
