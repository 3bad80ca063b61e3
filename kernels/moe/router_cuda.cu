// The router's products. Rows are read once; the few weights of experts come from the caches.
#include "kernels/base/cuda.cuh"
#include "kernels/base/packs.cuh"
#include "kernels/moe/back.hpp"

namespace tessera::moe {
namespace {

using columns::Lanes;
using packs::lanes, packs::Pack;

constexpr int rows_at_once = 4, experts_at_once = 8;

template <class T>
__device__ void unpack(float (&to)[lanes<T>], const T* from) {
  const auto pack = Pack<T>::at(from);
  for (int l = 0; l < lanes<T>; ++l) to[l] = static_cast<float>(pack.value[l]);
}

/// Logits of a few rows, by one warp. The sums of a row do not depend on the other rows.
template <class T>
struct Forward {
  float* logits;
  const T *x, *w;
  std::int64_t rows, columns, experts;
  __device__ void operator()(std::int64_t group, int lane) const {
    const std::int64_t begin = group * rows_at_once;
    for (std::int64_t first = 0; first < experts; first += experts_at_once) {
      float sum[rows_at_once][experts_at_once] = {};
      for (std::int64_t c = lane * lanes<T>; c < columns; c += 32 * lanes<T>) {
        float v[rows_at_once][lanes<T>];
#pragma unroll
        for (int r = 0; r < rows_at_once; ++r) unpack<T>(v[r], x + min(begin + r, rows - 1) * columns + c);
#pragma unroll
        for (int e = 0; e < experts_at_once; ++e) {
          float of_expert[lanes<T>];
          unpack<T>(of_expert, w + min(first + e, experts - 1) * columns + c);
#pragma unroll
          for (int r = 0; r < rows_at_once; ++r)
            for (int l = 0; l < lanes<T>; ++l) sum[r][e] = fmaf(v[r][l], of_expert[l], sum[r][e]);
        }
      }
#pragma unroll
      for (int r = 0; r < rows_at_once; ++r)
#pragma unroll
        for (int e = 0; e < experts_at_once; ++e) {
          const float logit = packs::warp_sum(sum[r][e]);
          if (lane == 0 && begin + r < rows && first + e < experts) logits[(begin + r) * experts + first + e] = logit;
        }
    }
  }
};

/// Input gradients: a pack of columns in a few rows per thread.
template <class T>
struct InputGradient {
  T* dx;
  const float* dlogits;
  const T* w;
  std::int64_t rows, columns, experts;
  __device__ void operator()(std::int64_t group, int p) const {
    const std::int64_t begin = group * rows_at_once, at = std::int64_t{p} * lanes<T>;
    float total[rows_at_once][lanes<T>];
#pragma unroll
    for (int r = 0; r < rows_at_once; ++r) unpack<T>(total[r], dx + min(begin + r, rows - 1) * columns + at);
    for (std::int64_t e = 0; e < experts; ++e) {
      float of_expert[lanes<T>];
      unpack<T>(of_expert, w + e * columns + at);
#pragma unroll
      for (int r = 0; r < rows_at_once; ++r) {
        const float d = dlogits[min(begin + r, rows - 1) * experts + e];
        for (int l = 0; l < lanes<T>; ++l) total[r][l] += d * of_expert[l];
      }
    }
#pragma unroll
    for (int r = 0; r < rows_at_once; ++r) {
      if (begin + r >= rows) break;
      Pack<T> sum;
      for (int l = 0; l < lanes<T>; ++l) sum.value[l] = T(total[r][l]);
      sum.to(dx + (begin + r) * columns + at);
    }
  }
};

/// Weight gradients: four columns of a few experts per thread of x, over one part of the rows, which the threads of y
/// share.
template <class T>
struct WeightPartials {
  static constexpr int width = 4, across = 64, shares = 4;
  float* partial;
  const float* dlogits;
  const T* x;
  std::int64_t rows, columns, experts;
};

template <class T>
__global__ void __launch_bounds__(WeightPartials<T>::across* WeightPartials<T>::shares)
    sum_part(const WeightPartials<T> p) {
  using P = WeightPartials<T>;
  constexpr int width = P::width;
  __shared__ __align__(16) float all[P::shares][experts_at_once][P::across * width];
  const int thread = static_cast<int>(threadIdx.x), share = static_cast<int>(threadIdx.y);
  const std::int64_t groups = p.experts / experts_at_once, part = blockIdx.x / groups;
  const std::int64_t first = blockIdx.x % groups * experts_at_once;
  const std::int64_t at = (std::int64_t{blockIdx.y} * P::across + thread) * width;
  constexpr std::int64_t count = rows_of_part / P::shares;
  const std::int64_t begin = part * rows_of_part + share * count, end = min(begin + count, p.rows);
  float total[experts_at_once][width] = {};
  if (at < p.columns) {
#pragma unroll 4
    for (std::int64_t r = begin; r < end; ++r) {
      const auto v = Lanes<T, width>::at(p.x + r * p.columns + at);
      const float* const up = p.dlogits + r * p.experts + first;
      const auto low = Lanes<float, 4>::at(up), high = Lanes<float, 4>::at(up + 4);
      for (int e = 0; e < experts_at_once; ++e) {
        const float d = e < 4 ? low.value[e % 4] : high.value[e % 4];
        for (int l = 0; l < width; ++l) total[e][l] += d * static_cast<float>(v.value[l]);
      }
    }
  }
  for (int e = 0; e < experts_at_once; ++e) {
    Lanes<float, width> sum;
    for (int l = 0; l < width; ++l) sum.value[l] = total[e][l];
    sum.to(&all[share][e][thread * width]);
  }
  __syncthreads();
  if (at >= p.columns) return;
  for (int e = share; e < experts_at_once; e += P::shares) {
    Lanes<float, width> sum{};
    for (int s = 0; s < P::shares; ++s) {
      const auto one = Lanes<float, width>::at(&all[s][e][thread * width]);
      for (int l = 0; l < width; ++l) sum.value[l] += one.value[l];
    }
    sum.to(p.partial + (part * p.experts + first + e) * p.columns + at);
  }
}

template <class T>
bool forward(Stream& stream, const Tensor& logits, const Tensor& x, const Tensor& w) {
  if (!packs::whole<T>(x.columns(), x, w)) return false;
  const Forward<T> f{logits.as<float>(), x.as<T>(), w.as<T>(), x.rows(), x.columns(), w.rows()};
  packs::start_warps(stream, ceil_div(x.rows(), std::int64_t{rows_at_once}), f);
  return true;
}

template <class T>
bool input_gradient(Stream& stream, const Tensor& dx, const Tensor& dlogits, const Tensor& w) {
  if (!packs::whole<T>(dx.columns(), dx, w)) return false;
  const InputGradient<T> f{dx.as<T>(), dlogits.as<float>(), w.as<T>(), dx.rows(), dx.columns(), w.rows()};
  packs::start_rows(stream, ceil_div(dx.rows(), std::int64_t{rows_at_once}), dx.columns() / lanes<T>, f);
  return true;
}

template <class T>
bool weight_partials(Stream& stream, const Tensor& partial, const Tensor& dlogits, const Tensor& x) {
  const std::int64_t experts = dlogits.columns(), n = x.columns();
  if (!packs::whole<T>(n, partial, dlogits, x) || experts % experts_at_once != 0) return false;
  using P = WeightPartials<T>;
  stream.count_launch();
  const dim3 blocks(static_cast<unsigned>(partial.shape[0] * experts / experts_at_once),
                    static_cast<unsigned>(ceil_div(n, std::int64_t{P::across * P::width})));
  if (stream.dry() || blocks.x == 0) return true;
  const P f{partial.as<float>(), dlogits.as<float>(), x.as<T>(), x.rows(), n, experts};
  start_kernel(space_of(stream).cuda_stream(), "router_weight_gradient", sum_part<T>,
               {blocks, dim3(P::across, P::shares)}, f);
  return true;
}

}  // namespace

bool router_forward(Stream& stream, const Tensor& logits, const Tensor& x, const Tensor& w) {
  if (x.type == DType::bf16) return forward<bf16>(stream, logits, x, w);
  return x.type == DType::f32 && forward<float>(stream, logits, x, w);
}

bool router_input_gradient(Stream& stream, const Tensor& dx, const Tensor& dlogits, const Tensor& w) {
  if (dx.type == DType::bf16) return input_gradient<bf16>(stream, dx, dlogits, w);
  return dx.type == DType::f32 && input_gradient<float>(stream, dx, dlogits, w);
}

bool router_weight_partials(Stream& stream, const Tensor& partial, const Tensor& dlogits, const Tensor& x) {
  if (x.type == DType::bf16) return weight_partials<bf16>(stream, partial, dlogits, x);
  return x.type == DType::f32 && weight_partials<float>(stream, partial, dlogits, x);
}

}  // namespace tessera::moe
