// Flash attention in tiles that stay in shared memory (Dao 2022), for every type and size that
// neither the kernels for Hopper nor cuDNN take.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "kernels/attention/back.hpp"
#include "kernels/attention/hopper.hpp"
#include "kernels/attention/library.hpp"
#include "kernels/base/cuda.cuh"
#include "kernels/base/index.hpp"
#include "kernels/base/launch.hpp"
#include "kernels/base/math.hpp"

namespace tessera::attention {
namespace {

constexpr int side = 16;  // a block is side x side threads; each takes M x M elements of a tile
constexpr std::int64_t shared_memory = 220 << 10;

/// A matrix in shared memory. Rows are padded by one element, against bank conflicts.
template <class A>
struct Tile {
  A* data;
  int stride;
  __device__ A& operator()(int row, int column) const { return data[row * stride + column]; }
  __device__ static Tile take(A*& memory, int rows, int columns) {
    const Tile tile{memory, columns + 1};
    memory += rows * (columns + 1);
    return tile;
  }
};

/// One head of a matrix of tokens: the address of its first row, and the distance to the next row.
template <class T>
struct Head {
  T* data;
  std::int64_t stride;
};

/// Pointers to q, k, v and results for one sequence, head and key head.
template <class T>
struct Operands {
  T* qkv;
  std::int64_t length, heads, kv_heads, dim;
  double scale;
  const std::int32_t* positions;  ///< of all tokens in their documents; null: a sequence is one document

  /// The first key that a query of sequence `s` sees.
  __device__ std::int64_t first_key(std::int64_t s, std::int64_t row) const {
    if (positions == nullptr || row >= length) return 0;
    const std::int64_t first = row - positions[s * length + row];
    return first > 0 ? first : 0;
  }
  __device__ std::int64_t columns() const { return (heads + 2 * kv_heads) * dim; }
  __device__ Head<T> packed(std::int64_t s, std::int64_t slot) const {
    return {qkv + s * length * columns() + slot * dim, columns()};
  }
  __device__ Head<T> query(std::int64_t s, std::int64_t h) const { return packed(s, h); }
  __device__ Head<T> key(std::int64_t s, std::int64_t g) const { return packed(s, heads + g); }
  __device__ Head<T> value(std::int64_t s, std::int64_t g) const { return packed(s, heads + kv_heads + g); }
  template <class U>
  __device__ Head<U> wide(U* matrix, std::int64_t s, std::int64_t h) const {
    return {matrix + (s * length * heads + h) * dim, heads * dim};
  }
};

template <class T>
Operands<T> operands_of(const AttentionShape& s, const Tensor& qkv, const Tensor& positions) {
  return {qkv.as<std::remove_const_t<T>>(),
          s.length,
          s.heads,
          s.kv_heads,
          s.head_dim,
          1 / std::sqrt(static_cast<double>(s.head_dim)),
          positions ? positions.as<std::int32_t>() : nullptr};
}

__device__ inline int thread_of_block() { return static_cast<int>(threadIdx.y) * side + static_cast<int>(threadIdx.x); }

/// Loads rows [first, first + rows) of a head; rows from `length` on become zeros.
template <class A, class T>
__device__ void load(const Tile<A>& tile, Head<T> from, std::int64_t first, std::int64_t length, int rows, int dim) {
  for (int i = thread_of_block(); i < rows * dim; i += side * side) {
    const int r = i / dim, d = i % dim;
    tile(r, d) = first + r < length ? A(from.data[(first + r) * from.stride + d]) : A(0);
  }
}

template <class A>
__device__ void clear(const Tile<A>& tile, int rows, int dim) {
  for (int i = thread_of_block(); i < rows * dim; i += side * side) tile(i / dim, i % dim) = A(0);
}

template <class A, class T>
__device__ void store(Head<T> to, const Tile<A>& tile, std::int64_t first, std::int64_t length, int rows, int dim) {
  for (int i = thread_of_block(); i < rows * dim; i += side * side) {
    const int r = i / dim, d = i % dim;
    if (first + r < length) to.data[(first + r) * to.stride + d] = T(tile(r, d));
  }
}

/// sum[i][j] = dot product of row y + side i of a and row x + side j of b.
template <int M, class A>
__device__ void row_products(A (&sum)[M][M], const Tile<A>& a, const Tile<A>& b, int dim) {
  for (auto& line : sum)
    for (A& s : line) s = 0;
  const int y = static_cast<int>(threadIdx.y), x = static_cast<int>(threadIdx.x);
  for (int d = 0; d < dim; ++d) {
    A left[M], right[M];
    for (int i = 0; i < M; ++i) left[i] = a(y + side * i, d), right[i] = b(x + side * i, d);
    for (int i = 0; i < M; ++i)
      for (int j = 0; j < M; ++j) sum[i][j] = ::fma(left[i], right[j], sum[i][j]);
  }
}

enum class Turn { none, transposed };

/// to += weights b, or weights^T b, over a tile's `side` of the summed dimension.
template <int M, Turn turn, class A>
__device__ void add_product(const Tile<A>& to, const Tile<A>& weights, const Tile<A>& b, int dim) {
  const int y = static_cast<int>(threadIdx.y), x = static_cast<int>(threadIdx.x);
  for (int column = 0; column < dim; column += side * M) {
    A sum[M][M] = {};
    for (int k = 0; k < side * M; ++k) {
      A left[M], right[M];
      for (int i = 0; i < M; ++i) {
        const int row = y + side * i, d = column + x + side * i;
        left[i] = turn == Turn::none ? weights(row, k) : weights(k, row);
        right[i] = d < dim ? b(k, d) : A(0);
      }
      for (int i = 0; i < M; ++i)
        for (int j = 0; j < M; ++j) sum[i][j] = ::fma(left[i], right[j], sum[i][j]);
    }
    for (int i = 0; i < M; ++i)
      for (int j = 0; j < M; ++j)
        if (const int d = column + x + side * j; d < dim) to(y + side * i, d) += sum[i][j];
  }
}

/// Reduces by f over the threads of one row of a tile, which are neighbours in a warp.
template <class A, class F>
__device__ A over_row(A value, const F& f) {
  for (int lane = side / 2; lane > 0; lane /= 2) value = f(value, __shfl_xor_sync(0xFFFFFFFFu, value, lane, side));
  return value;
}

/// The block's place in a grid of one axis, since the others end at 65535: tiles of rows in heads in sequences.
struct BlockPlace {
  std::int64_t tile, tiles, head, sequence;
};
__device__ BlockPlace block_place(std::int64_t length, int rows, std::int64_t heads) {
  const std::int64_t tiles = (length + rows - 1) / rows, head = blockIdx.x / tiles;
  return {blockIdx.x % tiles, tiles, head % heads, head / heads};
}

template <class T, int M>
__global__ void __launch_bounds__(side* side) forward_kernel(Operands<const T> in, T* y, Accumulator<T>* sums) {
  using A = Accumulator<T>;
  constexpr int rows = side * M;
  extern __shared__ double memory[];
  A* at = reinterpret_cast<A*>(memory);
  const int dim = static_cast<int>(in.dim), ty = static_cast<int>(threadIdx.y), tx = static_cast<int>(threadIdx.x);
  const Tile<A> q = Tile<A>::take(at, rows, dim), k = Tile<A>::take(at, rows, dim), v = Tile<A>::take(at, rows, dim),
                o = Tile<A>::take(at, rows, dim), p = Tile<A>::take(at, rows, rows);
  const BlockPlace place = block_place(in.length, rows, in.heads);
  const std::int64_t h = place.head, s = place.sequence, g = h / (in.heads / in.kv_heads);
  const std::int64_t first = (place.tiles - 1 - place.tile) * rows;  // longest ones first
  load(q, in.query(s, h), first, in.length, rows, dim);
  clear(o, rows, dim);
  A top[M], total[M];
  std::int64_t from[M];
  for (int i = 0; i < M; ++i)
    top[i] = -std::numeric_limits<A>::infinity(), total[i] = 0, from[i] = in.first_key(s, first + ty + side * i);
  for (std::int64_t key = in.first_key(s, first) / rows * rows; key < first + rows && key < in.length; key += rows) {
    __syncthreads();
    load(k, in.key(s, g), key, in.length, rows, dim);
    load(v, in.value(s, g), key, in.length, rows, dim);
    __syncthreads();
    A score[M][M];
    row_products<M>(score, q, k, dim);
    for (int i = 0; i < M; ++i) {
      const std::int64_t row = first + ty + side * i;
      A highest = top[i], part = 0;
      for (int j = 0; j < M; ++j) {
        const std::int64_t column = key + tx + side * j;
        const bool seen = column <= row && column >= from[i];
        score[i][j] = seen ? score[i][j] * A(in.scale) : -std::numeric_limits<A>::infinity();
        highest = score[i][j] > highest ? score[i][j] : highest;
      }
      highest = over_row(highest, [](A a, A b) { return a > b ? a : b; });
      // Before the first key of its document a row has seen none.
      const A shift = highest == -std::numeric_limits<A>::infinity() ? A(0) : highest;
      const A shrink = exp_of(top[i] - shift);
      for (int j = 0; j < M; ++j) {
        const A weight = exp_of(score[i][j] - shift);
        p(ty + side * i, tx + side * j) = weight;
        part += weight;
      }
      total[i] = total[i] * shrink + over_row(part, [](A a, A b) { return a + b; });
      top[i] = highest;
      for (int d = tx; d < dim; d += side) o(ty + side * i, d) *= shrink;
    }
    __syncthreads();
    add_product<M, Turn::none>(o, p, v, dim);
  }
  __syncthreads();
  for (int i = 0; i < M; ++i) {
    const std::int64_t row = first + ty + side * i;
    for (int d = tx; d < dim; d += side) o(ty + side * i, d) /= total[i];
    if (tx == 0 && row < in.length) sums[(s * in.heads + h) * in.length + row] = top[i] + log_of(total[i]);
  }
  __syncthreads();
  store(in.wide(y, s, h), o, first, in.length, rows, dim);
}

/// Inputs of backward besides the operands; delta is the dot product of each row of dy with that of y.
template <class T>
struct Upward {
  const T* dy;
  const Accumulator<T>*sums, *delta;
};

/// p and ds of one tile: probabilities, and gradients of scores times their scale.
template <int M, class T, class A>
__device__ void score_gradients(const Tile<A>& p, const Tile<A>& ds, const Tile<A>& q, const Tile<A>& k,
                                const Tile<A>& v, const Tile<A>& dy, const Operands<const T>& in, const Upward<T>& up,
                                std::int64_t sequence, std::int64_t head, std::int64_t query, std::int64_t key) {
  const int ty = static_cast<int>(threadIdx.y), tx = static_cast<int>(threadIdx.x), dim = static_cast<int>(in.dim);
  A score[M][M], slope[M][M];
  row_products<M>(score, q, k, dim);
  row_products<M>(slope, dy, v, dim);
  for (int i = 0; i < M; ++i) {
    const std::int64_t row = query + ty + side * i;
    const bool real = row < in.length;
    const std::int64_t at = (sequence * in.heads + head) * in.length + row, from = in.first_key(sequence, row);
    const A sum = real ? up.sums[at] : A(0), delta = real ? up.delta[at] : A(0);
    for (int j = 0; j < M; ++j) {
      const std::int64_t column = key + tx + side * j;
      const bool seen = real && column <= row && column >= from;
      const A weight = seen ? exp_of(score[i][j] * A(in.scale) - sum) : A(0);
      p(ty + side * i, tx + side * j) = weight;
      ds(ty + side * i, tx + side * j) = weight * (slope[i][j] - delta) * A(in.scale);
    }
  }
}

template <class T, int M>
__global__ void __launch_bounds__(side* side) dq_kernel(Operands<const T> in, Upward<T> up, Operands<T> gradient) {
  using A = Accumulator<T>;
  constexpr int rows = side * M;
  extern __shared__ double memory[];
  A* at = reinterpret_cast<A*>(memory);
  const int dim = static_cast<int>(in.dim);
  const Tile<A> q = Tile<A>::take(at, rows, dim), dy = Tile<A>::take(at, rows, dim), k = Tile<A>::take(at, rows, dim),
                v = Tile<A>::take(at, rows, dim), dq = Tile<A>::take(at, rows, dim), p = Tile<A>::take(at, rows, rows),
                ds = Tile<A>::take(at, rows, rows);
  const BlockPlace place = block_place(in.length, rows, in.heads);
  const std::int64_t h = place.head, s = place.sequence, g = h / (in.heads / in.kv_heads);
  const std::int64_t first = (place.tiles - 1 - place.tile) * rows;
  load(q, in.query(s, h), first, in.length, rows, dim);
  load(dy, in.wide(up.dy, s, h), first, in.length, rows, dim);
  clear(dq, rows, dim);
  for (std::int64_t key = in.first_key(s, first) / rows * rows; key < first + rows && key < in.length; key += rows) {
    __syncthreads();
    load(k, in.key(s, g), key, in.length, rows, dim);
    load(v, in.value(s, g), key, in.length, rows, dim);
    __syncthreads();
    score_gradients<M>(p, ds, q, k, v, dy, in, up, s, h, first, key);
    __syncthreads();
    add_product<M, Turn::none>(dq, ds, k, dim);
  }
  __syncthreads();
  store(gradient.query(s, h), dq, first, in.length, rows, dim);
}

template <class T, int M>
__global__ void __launch_bounds__(side* side) dkv_kernel(Operands<const T> in, Upward<T> up, Operands<T> gradient) {
  using A = Accumulator<T>;
  constexpr int rows = side * M;
  extern __shared__ double memory[];
  A* at = reinterpret_cast<A*>(memory);
  const int dim = static_cast<int>(in.dim);
  const Tile<A> k = Tile<A>::take(at, rows, dim), v = Tile<A>::take(at, rows, dim), q = Tile<A>::take(at, rows, dim),
                dy = Tile<A>::take(at, rows, dim), dk = Tile<A>::take(at, rows, dim), dv = Tile<A>::take(at, rows, dim),
                p = Tile<A>::take(at, rows, rows), ds = Tile<A>::take(at, rows, rows);
  const BlockPlace place = block_place(in.length, rows, in.kv_heads);
  const std::int64_t g = place.head, s = place.sequence, sharing = in.heads / in.kv_heads;
  const std::int64_t key = place.tile * rows;
  load(k, in.key(s, g), key, in.length, rows, dim);
  load(v, in.value(s, g), key, in.length, rows, dim);
  clear(dk, rows, dim);
  clear(dv, rows, dim);
  for (std::int64_t h = g * sharing; h < (g + 1) * sharing; ++h)
    // Queries of later documents see none of these keys.
    for (std::int64_t query = key; query < in.length && in.first_key(s, query) < key + rows; query += rows) {
      __syncthreads();
      load(q, in.query(s, h), query, in.length, rows, dim);
      load(dy, in.wide(up.dy, s, h), query, in.length, rows, dim);
      __syncthreads();
      score_gradients<M>(p, ds, q, k, v, dy, in, up, s, h, query, key);
      __syncthreads();
      add_product<M, Turn::transposed>(dk, ds, q, dim);
      add_product<M, Turn::transposed>(dv, p, dy, dim);
    }
  __syncthreads();
  store(gradient.key(s, g), dk, key, in.length, rows, dim);
  store(gradient.value(s, g), dv, key, in.length, rows, dim);
}

/// Shared memory in bytes of a kernel with `wide` tiles of a head's columns and `square` tiles of scores.
template <class T>
std::int64_t bytes_of(int m, int wide, int square, std::int64_t dim) {
  const std::int64_t rows = side * m;
  return static_cast<std::int64_t>(sizeof(Accumulator<T>)) * rows * (wide * (dim + 1) + square * (rows + 1));
}

/// Calls f<M>() with the largest tiles that fit into shared memory.
template <class T, class F>
void with_tiles(int wide, int square, std::int64_t dim, const F& f) {
  if (bytes_of<T>(4, wide, square, dim) <= shared_memory) return f.template operator()<4>();
  if (bytes_of<T>(2, wide, square, dim) <= shared_memory) return f.template operator()<2>();
  require(bytes_of<T>(1, wide, square, dim) <= shared_memory, "attention", "head_dim is too large for this GPU");
  f.template operator()<1>();
}

template <class Kernel, class... Arguments>
void start(Stream& stream, Kernel* kernel, dim3 grid, std::int64_t bytes, const Arguments&... arguments) {
  start_kernel(space_of(stream).cuda_stream(), "attention", kernel,
               {grid, dim3(side, side), static_cast<std::size_t>(bytes)}, arguments...);
}

dim3 grid_of(const AttentionShape& s, std::int64_t heads, int m) {
  return {static_cast<unsigned>(ceil_div(s.length, side * m) * heads * s.sequences)};
}

template <class T>
void forward_as(Stream& stream, const AttentionShape& s, const AttentionOperands& pass) {
  with_tiles<T>(4, 1, s.head_dim, [&]<int M>() {
    start(stream, forward_kernel<T, M>, grid_of(s, s.heads, M), bytes_of<T>(M, 4, 1, s.head_dim),
          operands_of<const T>(s, pass.qkv, pass.positions), pass.out.as<T>(), pass.lse.as<Accumulator<T>>());
  });
}

/// delta [sequences, H, T] = the dot product of each head's row of dout with that of out.
template <class T>
void products(Stream& stream, const AttentionShape& s, Accumulator<T>* delta, const Tensor& dout, const Tensor& out) {
  using A = Accumulator<T>;
  const T *const dy = dout.as<T>(), *const y = out.as<T>();
  const std::int64_t length = s.length, heads = s.heads, dim = s.head_dim;
  launch(
      stream, "attention_delta", s.sequences * heads * length, KOKKOS_LAMBDA(std::int64_t r) {
        const std::int64_t t = r % length, h = r / length % heads,
                           at = ((r / (length * heads) * length + t) * heads + h) * dim;
        A sum = 0;
        for (std::int64_t d = at; d < at + dim; ++d) sum = ::fma(A(dy[d]), A(y[d]), sum);
        delta[r] = sum;
      });
}

template <class T>
void backward_as(Stream& stream, const AttentionShape& s, const AttentionOperands& pass, const Tensor& dqkv,
                 const Tensor& dout, Accumulator<T>* delta) {
  products<T>(stream, s, delta, dout, pass.out);
  const auto in = operands_of<const T>(s, pass.qkv, pass.positions);
  const auto gradient = operands_of<T>(s, dqkv, pass.positions);
  const Upward<T> up{dout.as<T>(), pass.lse.as<Accumulator<T>>(), delta};
  with_tiles<T>(5, 2, s.head_dim, [&]<int M>() {
    start(stream, dq_kernel<T, M>, grid_of(s, s.heads, M), bytes_of<T>(M, 5, 2, s.head_dim), in, up, gradient);
  });
  with_tiles<T>(6, 2, s.head_dim, [&]<int M>() {
    start(stream, dkv_kernel<T, M>, grid_of(s, s.kv_heads, M), bytes_of<T>(M, 6, 2, s.head_dim), in, up, gradient);
  });
}

/// The project's kernels for tensor cores; each returns false for shapes that it does not take.
struct Route {
  decltype(&hopper_forward) forward;
  decltype(&hopper_backward) backward;
};
#ifdef TESSERA_HOPPER
constexpr std::array routes{Route{hopper_forward, hopper_backward}, Route{wide_forward, wide_backward}};
#else
constexpr std::array<Route, 0> routes;
#endif

}  // namespace

void forward(Stream& stream, Arena&, const AttentionShape& shape, const AttentionOperands& pass) {
  if (!pass.positions) {  // of which neither kernels for tensor cores nor cuDNN know
    for (const Route& route : routes)
      if (route.forward(stream, shape, pass)) return;
    if (library_forward(stream, shape, pass)) return;
  }
  if (stream.dry()) return;
  dispatch_real(pass.qkv.type, "attention_forward", [&]<class T>() { forward_as<T>(stream, shape, pass); });
}

void backward(Stream& stream, Arena& arena, const AttentionShape& shape, const AttentionOperands& pass,
              const Tensor& dqkv, const Tensor& dout) {
  if (!pass.positions)
    for (const Route& route : routes)
      if (route.backward(stream, arena, shape, pass, dqkv, dout)) return;
  const Arena::Frame frame(arena);
  const Tensor delta = arena.temp(pass.lse.type, pass.lse.shape);
  if (!pass.positions && library_backward(stream, shape, pass, dqkv, dout)) return;
  if (stream.dry()) return;
  dispatch_real(pass.qkv.type, "attention_backward", [&]<class T>() {
    backward_as<T>(stream, shape, pass, dqkv, dout, delta.as<Accumulator<T>>());
  });
}

}  // namespace tessera::attention

namespace tessera {

std::int64_t most_head_dim() {
  using namespace attention;
  const std::int64_t wide = shared_memory / (static_cast<std::int64_t>(sizeof(float)) * side) - 2 * (side + 1);
  return wide / 6 - 1;  // of dkv_kernel, which takes most
}

}  // namespace tessera
