// Norms of rows of real training sizes: every value is read once, 16 bytes at a time, and stays in registers.
#include "kernels/base/columns.cuh"
#include "kernels/base/launch.hpp"
#include "kernels/normalize/back.hpp"

namespace tessera::normalize {
namespace {

using columns::aligned;
using columns::Lanes;

constexpr int most_packs = 4, block_threads = 128, most_threads = 512;

/// The threads that share one row: `width` of them, a multiple of 32.
struct RowThreads {
  int width, thread, row_of_block;
  std::int64_t row;

  __device__ RowThreads()
      : width(static_cast<int>(blockDim.x)),
        thread(static_cast<int>(threadIdx.x)),
        row_of_block(static_cast<int>(threadIdx.y)),
        row(std::int64_t{blockIdx.x} * blockDim.y + threadIdx.y) {}

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
/// barriers, which limits its blocks, so this suits kernels whose blocks stay until the end.
struct ApartRowThreads : RowThreads {
  mutable int turn = 0;

  /// The sum over the row's threads, in a fixed order. All threads of the row must call it.
  template <int count>
  __device__ void add(float (&value)[count]) const {
    add_in_warps(value);
    if (width == 32) return;
    // Two arrays alternate: a thread that writes to one again has passed a barrier that follows all reads of it.
    __shared__ float all[2][count][most_threads / 32];
    const int warps = width / 32, first = row_of_block * warps;
    turn ^= 1;
    if (thread % 32 == 0)
      for (int i = 0; i < count; ++i) all[turn][i][first + thread / 32] = value[i];
    asm volatile("bar.sync %0, %1;" ::"r"(row_of_block + 1), "r"(width) : "memory");
    for (int i = 0; i < count; ++i) {
      value[i] = 0;
      for (int w = 0; w < warps; ++w) value[i] += all[turn][i][first + w];
    }
  }
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
  __device__ void load(const RowThreads& t, int n, const T* row) {
    each(t, n, [&](int p, int column) {
      const auto pack = Lanes<T, lanes>::at(row + column);
      for (int l = 0; l < lanes; ++l) v[p][l] = float(pack.value[l]);
    });
  }
};

template <class T>
struct Forward {
  T *y, *sum;
  float *mean, *rstd;
  const T *x, *branch, *weight, *bias;
  std::int64_t rows;
  int n;
  float eps;
};

template <class T, Norm kind, int packs>
__global__ void __launch_bounds__(256) forward_kernel(const Forward<T> p) {
  constexpr int lanes = columns::widest<T>;
  using V = Values<T, packs>;
  const RowThreads t;
  const bool real = t.row < p.rows;
  const std::int64_t at = real ? t.row * p.n : 0;
  V x;
  x.load(t, p.n, p.x + at);
  if (p.branch != nullptr)
    V::each(t, p.n, [&](int i, int column) {
      const auto branch = Lanes<T, lanes>::at(p.branch + at + column);
      Lanes<T, lanes> sum;
      for (int l = 0; l < lanes; ++l)
        sum.value[l] = T(x.v[i][l] + float(branch.value[l])), x.v[i][l] = float(sum.value[l]);
      if (real) sum.to(p.sum + at + column);
    });
  const float share = 1.0f / static_cast<float>(p.n);
  float mean[1] = {};
  if (kind == Norm::layer) {
    V::each(t, p.n, [&](int i, int) {
      for (float v : x.v[i]) mean[0] += v;
    });
    t.add(mean);
    mean[0] *= share;
  }
  float square[1] = {};
  V::each(t, p.n, [&](int i, int) {
    for (float v : x.v[i]) square[0] += (v - mean[0]) * (v - mean[0]);
  });
  t.add(square);
  const float rstd = 1.0f / ::sqrtf(square[0] * share + p.eps);
  if (!real) return;
  V::each(t, p.n, [&](int i, int column) {
    const auto weight = Lanes<T, lanes>::at(p.weight + column);
    Lanes<T, lanes> y, bias{};
    if (p.bias != nullptr) bias = Lanes<T, lanes>::at(p.bias + column);
    for (int l = 0; l < lanes; ++l) {
      const float scaled = (x.v[i][l] - mean[0]) * rstd * float(weight.value[l]);
      y.value[l] = T(p.bias != nullptr ? scaled + float(bias.value[l]) : scaled);
    }
    y.to(p.y + at + column);
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
  std::int64_t rows;
  int n;
};

/// This thread's share of a row of the three factors, in their stored types.
template <class T, int packs>
struct Packs {
  static constexpr int lanes = columns::widest<T>;
  Lanes<T, lanes> x[packs] = {}, dy[packs] = {}, dx[packs] = {};

  __device__ void load(const RowThreads& t, const Backward<T>& p) {
    if (t.row >= p.rows) return;
    Values<T, packs>::each(t, p.n, [&](int i, int column) {
      const std::int64_t at = t.row * p.n + column;
      x[i] = Lanes<T, lanes>::at(p.x + at);
      dy[i] = Lanes<T, lanes>::at(p.dy + at);
      dx[i] = Lanes<T, lanes>::at(p.dx + at);
    });
  }
};

/// dx of the row at `t`; nothing if `t` is behind the last row. each(pack, lane, slope, normal) gets the slope before
/// it is multiplied by the weight. next() may fetch the next row into `row` while this row's sums are awaited.
template <class T, Norm kind, int packs, class Threads, class Each, class Next>
__device__ void row_backward(const Threads& t, const Backward<T>& p, const Packs<T, packs>& row, const Each& each,
                             const Next& next) {
  constexpr int lanes = columns::widest<T>;
  using V = Values<T, packs>;
  const bool real = t.row < p.rows;
  const float center = kind == Norm::layer && real ? p.mean[t.row] : 0.0f, scale = real ? p.rstd[t.row] : 0.0f;
  V normal, slope;
  Lanes<T, lanes> dx[packs];
  float sums[2] = {};  // of slope times normal, and of slope
  V::each(t, p.n, [&](int i, int column) {
    const auto weight = Lanes<T, lanes>::at(p.weight + column);
    dx[i] = row.dx[i];
    for (int l = 0; l < lanes; ++l) {
      normal.v[i][l] = (float(row.x[i].value[l]) - center) * scale;
      slope.v[i][l] = float(row.dy[i].value[l]);
      if (real) each(i, l, slope.v[i][l], normal.v[i][l]);
      slope.v[i][l] *= float(weight.value[l]);
      sums[0] = ::fmaf(slope.v[i][l], normal.v[i][l], sums[0]);
      sums[1] += slope.v[i][l];
    }
  });
  next();
  t.add(sums);
  if (!real) return;
  const float share = 1.0f / static_cast<float>(p.n);
  const float along = share * sums[0], average = kind == Norm::layer ? share * sums[1] : 0.0f;
  V::each(t, p.n, [&](int i, int column) {
    Lanes<T, lanes> d;
    for (int l = 0; l < lanes; ++l)
      d.value[l] = T(::fmaf(scale, ::fmaf(-along, normal.v[i][l], slope.v[i][l] - average), float(dx[i].value[l])));
    d.to(p.dx + t.row * p.n + column);
  });
}

template <class T, Norm kind, int packs>
__global__ void __launch_bounds__(256) backward_kernel(const Backward<T> p) {
  const RowThreads t;
  Packs<T, packs> row;
  row.load(t, p);
  row_backward<T, kind, packs>(
      t, p, row, [](int, int, float, float) {}, [] {});
}

template <class T>
struct Gradients {
  Backward<T> rows;
  float *weight_parts, *bias_parts;  ///< [blocks, C]; bias_parts null without a bias
};

/// Threads of a block. Rows of one pack per thread share a block, sized so that two blocks fit; wider rows have a block
/// each.
constexpr int widest_row = 8192, gradient_threads = 448, gradient_width = 256;

/// to[column] = the block's sum of a column: its rows of threads are added one after the other.
template <class T, int packs>
__device__ void store_sums(const RowThreads& t, int n, const Values<T, packs>& mine, float* to) {
  __shared__ float all[widest_row];
  for (int y = 0; y < static_cast<int>(blockDim.y); ++y) {
    __syncthreads();
    if (t.row_of_block != y) continue;
    mine.each(t, n, [&](int i, int column) {
      for (int l = 0; l < mine.lanes; ++l) all[column + l] = y == 0 ? mine.v[i][l] : all[column + l] + mine.v[i][l];
    });
  }
  __syncthreads();
  const int threads = t.width * static_cast<int>(blockDim.y);
  for (int column = t.row_of_block * t.width + t.thread; column < n; column += threads) to[column] = all[column];
}

/// Gradients: every block takes rows at a fixed distance and keeps the sums of its columns in registers.
template <class T, Norm kind, int packs>
__global__ void __launch_bounds__(packs == 1 ? gradient_threads : gradient_width, packs == 1 ? 2 : 1)
    gradients_kernel(const Gradients<T> g) {
  const Backward<T>& p = g.rows;
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.y;
  ApartRowThreads t;
  Values<T, packs> along{}, plain{};
  Packs<T, packs> row;
  row.load(t, p);
  for (std::int64_t first = std::int64_t{blockIdx.x} * blockDim.y; first < p.rows; first += step, t.row += step)
    row_backward<T, kind, packs>(
        t, p, row,
        [&](int i, int l, float slope, float normal) {
          along.v[i][l] = ::fmaf(slope, normal, along.v[i][l]);
          plain.v[i][l] += slope;
        },
        [&] {
          RowThreads next = t;
          next.row += step;
          row.load(next, p);
        });
  store_sums(t, p.n, along, g.weight_parts + std::int64_t{blockIdx.x} * p.n);
  if (g.bias_parts != nullptr) store_sums(t, p.n, plain, g.bias_parts + std::int64_t{blockIdx.x} * p.n);
}

bool fits(const Tensor& x, std::initializer_list<Tensor> others) {
  const int lanes = x.type == DType::bf16 ? columns::widest<bf16> : columns::widest<float>;
  bool fit = x.type != DType::f64 && x.columns() % lanes == 0 && x.columns() <= 256 * most_packs * lanes && aligned(x);
  for (const Tensor& t : others) fit = fit && aligned(t);
  return fit;
}

/// Calls f<packs>(threads) with the fewest threads per row that hold it, and as many rows per block as `block` threads
/// allow.
template <class T, class F>
void with_threads(unsigned block, std::int64_t n, const F& f) {
  const std::int64_t all = ceil_div(n, columns::widest<T>);
  unsigned width = 32;
  while (width * most_packs < all) width *= 2;
  const dim3 threads(width, width < block ? block / width : 1);
  switch (ceil_div(all, width)) {
    case 1:
      return f.template operator()<1>(threads);
    case 2:
      return f.template operator()<2>(threads);
    case 3:
      return f.template operator()<3>(threads);
    default:
      return f.template operator()<4>(threads);
  }
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
Backward<T> backward_of(const Tensor& dx, const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                        const Tensor& weight) {
  return {dx.as<T>(),
          dy.as<T>(),
          x.as<T>(),
          weight.as<T>(),
          kind == Norm::layer ? mean.as<float>() : nullptr,
          rstd.as<float>(),
          x.rows(),
          static_cast<int>(x.columns())};
}

}  // namespace

bool forward(Stream& stream, Norm kind, const Tensor& y, const Tensor& residual_out, const Tensor& mean,
             const Tensor& rstd, const Tensor& x, const Tensor& branch, const Tensor& weight, const Tensor& bias,
             double eps) {
  if (!fits(x, {y, residual_out, branch, weight, bias})) return false;
  stream.count_launch();
  with_types(x.type, kind, [&]<class T, Norm k>() {
    const Forward<T> p{y.as<T>(),
                       branch ? residual_out.as<T>() : nullptr,
                       k == Norm::layer ? mean.as<float>() : nullptr,
                       rstd.as<float>(),
                       x.as<T>(),
                       place_of<T>(branch),
                       weight.as<T>(),
                       place_of<T>(bias),
                       x.rows(),
                       static_cast<int>(x.columns()),
                       static_cast<float>(eps)};
    with_threads<T>(block_threads, x.columns(), [&]<int packs>(dim3 threads) {
      forward_kernel<T, k, packs><<<blocks_of(p.rows, threads), threads, 0, space_of(stream).cuda_stream()>>>(p);
    });
  });
  return true;
}

bool backward(Stream& stream, Norm kind, const Tensor& dx, const Tensor& dy, const Tensor& x, const Tensor& mean,
              const Tensor& rstd, const Tensor& weight) {
  if (!fits(x, {dx, dy, weight})) return false;
  stream.count_launch();
  with_types(x.type, kind, [&]<class T, Norm k>() {
    const auto p = backward_of<T, k>(dx, dy, x, mean, rstd, weight);
    with_threads<T>(block_threads, x.columns(), [&]<int packs>(dim3 threads) {
      backward_kernel<T, k, packs><<<blocks_of(p.rows, threads), threads, 0, space_of(stream).cuda_stream()>>>(p);
    });
  });
  return true;
}

bool gradients(Stream& stream, Norm kind, const Tensor& dx, const Gradient& dweight, const Gradient& dbias,
               const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd, const Tensor& weight,
               const Tensor& weight_parts, const Tensor& bias_parts) {
  const std::int64_t rows = x.rows(), n = x.columns(), blocks = columns::blocks_of(rows);
  if (!fits(x, {dx, dy, weight}) || blocks > weight_parts.rows()) return false;
  stream.count_launch();
  const cudaStream_t queue = space_of(stream).cuda_stream();
  with_types(x.type, kind, [&]<class T, Norm k>() {
    const Gradients<T> g{backward_of<T, k>(dx, dy, x, mean, rstd, weight), weight_parts.as<float>(),
                         place_of<float>(bias_parts)};
    with_gradient_threads<T>(n, [&]<int packs>(dim3 threads) {
      gradients_kernel<T, k, packs><<<static_cast<unsigned>(blocks), threads, 0, queue>>>(g);
    });
  });
  columns::start_add<float>(queue, dweight, weight_parts.as<float>(), rows, n);
  if (bias_parts) columns::start_add<float>(queue, dbias, bias_parts.as<float>(), rows, n);
  return true;
}

}  // namespace tessera::normalize
