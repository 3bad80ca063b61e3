// The router's products: rows are read once, the experts' weights, which are few, come from the caches.
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

/// Logits of a few rows by one warp. A row's sums do not depend on the others.
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

/// A pack of columns of a few rows.
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

/// Four columns of a few experts over one part of the rows.
template <class T>
struct WeightPartials {
  static constexpr int width = 4;
  float* partial;
  const float* dlogits;
  const T* x;
  std::int64_t rows, columns, experts;
  __device__ void operator()(std::int64_t item, int p) const {
    const std::int64_t groups = experts / experts_at_once, part = item / groups;
    const std::int64_t first = item % groups * experts_at_once, at = std::int64_t{p} * width;
    const std::int64_t begin = part * rows_of_part, end = min(begin + rows_of_part, rows);
    float total[experts_at_once][width] = {};
#pragma unroll 4
    for (std::int64_t r = begin; r < end; ++r) {
      const auto v = Lanes<T, width>::at(x + r * columns + at);
      const float* const up = dlogits + r * experts + first;
      const auto low = Lanes<float, 4>::at(up), high = Lanes<float, 4>::at(up + 4);
      for (int e = 0; e < experts_at_once; ++e) {
        const float d = e < 4 ? low.value[e % 4] : high.value[e % 4];
        for (int l = 0; l < width; ++l) total[e][l] += d * static_cast<float>(v.value[l]);
      }
    }
    for (int e = 0; e < experts_at_once; ++e) {
      Lanes<float, width> sum;
      for (int l = 0; l < width; ++l) sum.value[l] = total[e][l];
      sum.to(partial + (part * experts + first + e) * columns + at);
    }
  }
};

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
  const WeightPartials<T> f{partial.as<float>(), dlogits.as<float>(), x.as<T>(), x.rows(), n, experts};
  packs::start_rows(stream, partial.shape[0] * experts / experts_at_once, n / WeightPartials<T>::width, f);
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
