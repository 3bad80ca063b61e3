// Products of experts whose rows are counted on the device: one launch for all experts; each block of threads finds its
// expert from the offsets.
#include <algorithm>

#include "kernels/base/cuda.cuh"
#include "kernels/base/index.hpp"
#include "kernels/base/launch.hpp"
#include "kernels/gemm/experts.cuh"
#include "kernels/gemm/experts.hpp"
#include "kernels/gemm/gemm.hpp"
#include "kernels/gemm/route.hpp"
#include "kernels/gemm/tensor_cores.cuh"

namespace tessera::gemm {
namespace {

/// Rows [begin, end) of one expert.
struct Span {
  int expert, begin, end;
};

/// The `tile`-th piece of `size` rows, counting through all experts' rows, each cut into pieces; empty beyond the last.
__device__ inline Span piece_of_rows(const std::int32_t* offsets, int experts, int tile, int size) {
  for (int e = 0; e < experts; ++e) {
    const int begin = offsets[e], end = offsets[e + 1], pieces = (end - begin + size - 1) / size;
    if (tile < pieces) return {e, begin + tile * size, end};
    tile -= pieces;
  }
  return {0, 0, 0};
}

/// y = x w or x w^T: rows of x and y by expert.
template <class T>
struct RowsTimes {
  T* y;
  const T* x;
  Pointers<T> w;
  const std::int32_t* offsets;
  int experts;
  int n, k;  ///< columns of y and of x
  const float* alpha;  ///< one an expert; null: 1
  template <class A>
  __device__ A scaled(int expert, A sum) const {
    return alpha == nullptr ? sum : A(alpha[expert]) * sum;
  }
};

/// dw = beta dw + dy^T x, a sum over each expert's rows.
template <class T>
struct SumOfRows {
  Pointers<Accumulator<T>> dw;
  const T *dy, *x;
  const std::int32_t* offsets;
  int n, k;  ///< columns of dy and of x
  float beta;
  bool rounded;        ///< whether the sum is rounded to T before it is added
  const float* alpha;  ///< one for all experts; null: 1
};

template <class T>
__device__ Accumulator<T> sum_with(const SumOfRows<T>& p, Accumulator<T> old, Accumulator<T> product) {
  using A = Accumulator<T>;
  if (p.alpha != nullptr) product = A(*p.alpha) * product;
  const A whole = p.rounded ? A(T(product)) : product;
  return p.beta == 0 ? whole : A(p.beta) * old + whole;
}

// bf16 on tensor cores.

template <Stored weight>
__global__ void __launch_bounds__(TensorTile::threads, 2) rows_times_tiles(const __grid_constant__ RowsTimes<bf16> p) {
  const int columns = (p.n + TensorTile::n - 1) / TensorTile::n, tile_of_rows = static_cast<int>(blockIdx.x) / columns;
  const Span rows = piece_of_rows(p.offsets, p.experts, tile_of_rows, TensorTile::m);
  if (rows.begin >= rows.end) return;
  const int column = static_cast<int>(blockIdx.x) % columns * TensorTile::n;
  const TileSource a{p.x, p.k, rows.begin, rows.end, 0, p.k},
      b{p.w(rows.expert), weight == Stored::plain ? p.n : p.k, column, p.n, 0, p.k};
  TensorTile tile;
  tile.multiply<Stored::plain, weight>(a, b);
  tile.each_pair([&](int r, int c, float first, float second) {
    if (rows.begin + r >= rows.end || column + c >= p.n) return;
    const std::uint32_t low = bf16(p.scaled(rows.expert, first)).bits, high = bf16(p.scaled(rows.expert, second)).bits;
    *reinterpret_cast<std::uint32_t*>(p.y + std::int64_t{rows.begin + r} * p.n + column + c) = low | high << 16;
  });
}

__global__ void __launch_bounds__(TensorTile::threads, 2) sum_of_rows_tiles(const __grid_constant__ SumOfRows<bf16> p) {
  const int e = static_cast<int>(blockIdx.z), begin = p.offsets[e], end = p.offsets[e + 1];
  if (begin >= end && p.beta == 1) return;
  const int row = static_cast<int>(blockIdx.y) * TensorTile::m, column = static_cast<int>(blockIdx.x) * TensorTile::n;
  const TileSource a{p.dy, p.n, row, p.n, begin, end}, b{p.x, p.k, column, p.k, begin, end};
  TensorTile tile;
  tile.multiply<Stored::transposed, Stored::plain>(a, b);
  float* const dw = p.dw(e);
  tile.each_pair([&](int r, int c, float first, float second) {
    if (row + r >= p.n || column + c >= p.k) return;
    auto* const to = reinterpret_cast<float2*>(dw + std::int64_t{row + r} * p.k + column + c);
    const float2 old = p.beta == 0 ? float2{0, 0} : *to;
    *to = {sum_with(p, old.x, first), sum_with(p, old.y, second)};
  });
}

// All types and sizes on the ordinary units.

constexpr int side = 16, per_thread = 4, block = side * per_thread, depth = 16;

/// sum[i][j] over l in [0, n) of a(row y + side i, l) b(l, column x + side j); both give 0 outside their matrices.
template <class A, class Left, class Right>
__device__ void tile_product(A (&sum)[per_thread][per_thread], int n, const Left& a, const Right& b) {
  __shared__ A left[depth][block + 1], right[depth][block + 1];
  const int y = static_cast<int>(threadIdx.y), x = static_cast<int>(threadIdx.x);
  for (int first = 0; first < n; first += depth) {
    for (int i = y * side + x; i < depth * block; i += side * side) {
      left[i % depth][i / depth] = first + i % depth < n ? a(i / depth, first + i % depth) : A(0);
      right[i / block][i % block] = first + i / block < n ? b(first + i / block, i % block) : A(0);
    }
    __syncthreads();
    for (int l = 0; l < depth; ++l)
      for (int i = 0; i < per_thread; ++i)
        for (int j = 0; j < per_thread; ++j)
          sum[i][j] = ::fma(left[l][y + side * i], right[l][x + side * j], sum[i][j]);
    __syncthreads();
  }
}

template <class F>
__device__ void each_of_tile(const F& f) {
  for (int i = 0; i < per_thread; ++i)
    for (int j = 0; j < per_thread; ++j)
      f(i, j, static_cast<int>(threadIdx.y) + side * i, static_cast<int>(threadIdx.x) + side * j);
}

template <class T, Stored weight>
__global__ void rows_times_scalars(const __grid_constant__ RowsTimes<T> p) {
  using A = Accumulator<T>;
  const int columns = (p.n + block - 1) / block, tile_of_rows = static_cast<int>(blockIdx.x) / columns;
  const Span rows = piece_of_rows(p.offsets, p.experts, tile_of_rows, block);
  if (rows.begin >= rows.end) return;
  const int column = static_cast<int>(blockIdx.x) % columns * block;
  const T* const w = p.w(rows.expert);
  A sum[per_thread][per_thread] = {};
  tile_product<A>(
      sum, p.k,
      [&](int r, int l) { return rows.begin + r < rows.end ? A(p.x[std::int64_t{rows.begin + r} * p.k + l]) : A(0); },
      [&](int l, int c) {
        const std::int64_t at =
            weight == Stored::plain ? std::int64_t{l} * p.n + column + c : std::int64_t{column + c} * p.k + l;
        return column + c < p.n ? A(w[at]) : A(0);
      });
  each_of_tile([&](int i, int j, int r, int c) {
    if (rows.begin + r < rows.end && column + c < p.n)
      p.y[std::int64_t{rows.begin + r} * p.n + column + c] = T(p.scaled(rows.expert, sum[i][j]));
  });
}

template <class T>
__global__ void sum_of_rows_scalars(const __grid_constant__ SumOfRows<T> p) {
  using A = Accumulator<T>;
  const int e = static_cast<int>(blockIdx.z), begin = p.offsets[e], rows = p.offsets[e + 1] - begin;
  const int row = static_cast<int>(blockIdx.y) * block, column = static_cast<int>(blockIdx.x) * block;
  A sum[per_thread][per_thread] = {};
  tile_product<A>(
      sum, rows, [&](int r, int l) { return row + r < p.n ? A(p.dy[std::int64_t{begin + l} * p.n + row + r]) : A(0); },
      [&](int l, int c) { return column + c < p.k ? A(p.x[std::int64_t{begin + l} * p.k + column + c]) : A(0); });
  A* const dw = p.dw(e);
  each_of_tile([&](int i, int j, int r, int c) {
    if (row + r >= p.n || column + c >= p.k) return;
    A& to = dw[std::int64_t{row + r} * p.k + column + c];
    to = sum_with(p, p.beta == 0 ? A(0) : to, sum[i][j]);
  });
}

// The choice between the two kernels, and their numbers of blocks.

bool fits_tensor_cores(const Tensor& a, const Tensor& b, std::int64_t n, std::int64_t k) {
  const auto aligned = [](const Tensor& t) { return reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0; };
  return a.type == DType::bf16 && n % 8 == 0 && k % 8 == 0 && aligned(a) && aligned(b);
}
bool fits_tensor_cores(const ExpertOperands& w) {
  return begin_whole(w, [](const Operand& o) { return o.data; });
}

template <class Kernel, class Problem>
void start(Stream& stream, Kernel* kernel, dim3 grid, dim3 threads, int shared, const Problem& problem) {
  if (stream.dry()) return;
  start_kernel(space_of(stream).cuda_stream(), "expert product", kernel,
               {grid, threads, static_cast<std::size_t>(shared)}, problem);
}

unsigned tiles(std::int64_t n, int size) { return static_cast<unsigned>(ceil_div(n, size)); }

/// The grid of rows_times: row tiles of column tiles in one axis, since the others end at 65535. An upper bound: every
/// expert may leave a row tile that is not full.
unsigned grid_of(std::int64_t rows, std::int64_t experts, int m, std::int64_t n, int width) {
  return static_cast<unsigned>(std::min(rows, ceil_div(rows, m) + experts)) * tiles(n, width);
}

template <class T, Stored weight>
void rows_times(Stream& stream, const Product& product, const Addresses& at) {
  const Tensor &x = at.a.data, &y = at.c.list[0].sum;
  const std::int64_t experts = product.experts, rows = product.m, n = product.n, k = product.k;
  const RowsTimes<T> p{y.as<T>(),
                       x.as<T>(),
                       pointers_of<T>(at.b),
                       at.offsets.as<std::int32_t>(),
                       static_cast<int>(experts),
                       static_cast<int>(n),
                       static_cast<int>(k),
                       product.scaled ? at.alpha.as<float>() : nullptr};
  if constexpr (std::is_same_v<T, bf16>)
    if (fits_tensor_cores(x, y, n, k) && fits_tensor_cores(at.b))
      return start(stream, rows_times_tiles<weight>, grid_of(rows, experts, TensorTile::m, n, TensorTile::n),
                   TensorTile::threads, TensorTile::shared_bytes, p);
  start(stream, rows_times_scalars<T, weight>, grid_of(rows, experts, block, n, block), {side, side}, 0, p);
}

template <class T>
void sum_of_rows(Stream& stream, const Product& product, const Addresses& at) {
  const Tensor &dy = at.a.data, &x = at.b.list[0].data;
  const std::int64_t n = product.m, k = product.n;
  const SumOfRows<T> p{pointers_of<Accumulator<T>>(at.c),
                       dy.as<T>(),
                       x.as<T>(),
                       at.offsets.as<std::int32_t>(),
                       static_cast<int>(n),
                       static_cast<int>(k),
                       product.beta,
                       product.epilogue == Epilogue::rounded,
                       product.scaled ? at.alpha.as<float>() : nullptr};
  const auto blocks = static_cast<unsigned>(product.experts);
  if constexpr (std::is_same_v<T, bf16>)
    if (fits_tensor_cores(dy, x, n, k) && begin_whole(at.c, [](const Gradient& g) { return g.sum; }))
      return start(stream, sum_of_rows_tiles, {tiles(k, TensorTile::n), tiles(n, TensorTile::m), blocks},
                   TensorTile::threads, TensorTile::shared_bytes, p);
  start(stream, sum_of_rows_scalars<T>, {tiles(k, block), tiles(n, block), blocks}, {side, side}, 0, p);
}

}  // namespace

void multiply_experts(Stream& stream, const Product& product, const Addresses& at) {
#ifdef TESSERA_HOPPER
  if (product.a)
    return (product.scaled ? multiply_grouped_tensors : multiply_grouped_blocks)(stream, product, at);
  if (processor() == 90 && multiply_grouped(stream, product, at)) return;
#endif
  dispatch_real(product.type, "expert product", [&]<class T>() {
    switch (product.form) {
      case Form::forward: return rows_times<T, Stored::transposed>(stream, product, at);
      case Form::input_gradient: return rows_times<T, Stored::plain>(stream, product, at);
      case Form::weight_gradient: return sum_of_rows<T>(stream, product, at);
    }
  });
}

}  // namespace tessera::gemm

namespace tessera {

std::int64_t most_discrete_experts() { return gemm::most_listed; }

}  // namespace tessera
