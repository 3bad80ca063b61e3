#include <cmath>

#include "kernels/attention/back.hpp"
#include "kernels/base/launch.hpp"
#include "kernels/base/math.hpp"

// A team of threads a row, with all probabilities in memory: exact and repeatable, no more. The fast path for bf16 is a
// library's.
namespace tessera::attention {
namespace {

/// Addresses one head of the packed projections.
template <class T> struct Heads {
  T* data;
  std::int64_t length, heads, kv_heads, head_dim;

  KOKKOS_FUNCTION std::int64_t columns() const { return (heads + 2 * kv_heads) * head_dim; }
  KOKKOS_FUNCTION std::int64_t kv_head(std::int64_t h) const { return h / (heads / kv_heads); }
  KOKKOS_FUNCTION T* query(std::int64_t s, std::int64_t t, std::int64_t h) const { return data + (s * length + t) * columns() + h * head_dim; }
  KOKKOS_FUNCTION T* key(std::int64_t s, std::int64_t t, std::int64_t g) const { return query(s, t, heads + g); }
  KOKKOS_FUNCTION T* value(std::int64_t s, std::int64_t t, std::int64_t g) const { return query(s, t, heads + kv_heads + g); }
};

template <class T> Heads<T> heads_of(const AttentionShape& shape, const Tensor& qkv) {
  return {qkv.as<T>(), shape.length, shape.heads, shape.kv_heads, shape.head_dim};
}

template <class A, class T> KOKKOS_FUNCTION A dot(const T* a, const T* b, std::int64_t n) {
  A sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += A(a[i]) * A(b[i]);
  return sum;
}

template <class T> void forward_as(Stream& stream, Arena& arena, const AttentionShape& shape, const Tensor& out, const Tensor& lse,
                                   const Tensor& qkv) {
  using A = Accumulator<T>;
  const Arena::Frame frame(arena);
  const std::int64_t rows = shape.sequences * shape.heads * shape.length, L = shape.length, H = shape.heads, D = shape.head_dim;
  A* p = arena.temp(dtype_of<A>, {rows, L}).template as<A>();
  const Heads<T> in = heads_of<T>(shape, qkv);
  T* y = out.as<T>();
  A* sums = lse.as<A>();
  const A scale = A(1) / A(std::sqrt(static_cast<double>(D)));
  launch_rows(stream, "attention_forward", rows, KOKKOS_LAMBDA(const Row& row, std::int64_t r) {
    const std::int64_t q = r % L, h = r / L % H, s = r / (L * H), g = in.kv_head(h);
    A* scores = p + r * L;
    row.each(q + 1, [&](std::int64_t k) { scores[k] = scale * dot<A>(in.query(s, q, h), in.key(s, k, g), D); });
    const A top = row.template max<A>(q + 1, [&](std::int64_t k) { return scores[k]; });
    const A sum = row.template sum<A>(q + 1, [&](std::int64_t k) { return exp_of(scores[k] - top); });
    row.once([&] { sums[r] = top + log_of(sum); });
    row.each(D, [&](std::int64_t d) {
      A total = 0;
      for (std::int64_t k = 0; k <= q; ++k) total += exp_of(scores[k] - top) * A(in.value(s, k, g)[d]);
      y[(s * L + q) * H * D + h * D + d] = T(total / sum);
    });
  });
}

/// p and ds [rows, T]: probabilities, and gradients of the scores times their scale.
template <class T> void score_gradients(Stream& stream, const AttentionShape& shape, Accumulator<T>* p, Accumulator<T>* ds,
                                        const Tensor& dout, const Tensor& qkv, const Tensor& out, const Tensor& lse) {
  using A = Accumulator<T>;
  const std::int64_t rows = shape.sequences * shape.heads * shape.length, L = shape.length, H = shape.heads, D = shape.head_dim;
  const Heads<T> in = heads_of<T>(shape, qkv);
  const T *dy = dout.as<T>(), *y = out.as<T>();
  const A* sums = lse.as<A>();
  const A scale = A(1) / A(std::sqrt(static_cast<double>(D)));
  launch_rows(stream, "attention_scores", rows, KOKKOS_LAMBDA(const Row& row, std::int64_t r) {
    const std::int64_t q = r % L, h = r / L % H, s = r / (L * H), g = in.kv_head(h);
    const T* gradient = dy + (s * L + q) * H * D + h * D;
    const A delta = dot<A>(gradient, y + (s * L + q) * H * D + h * D, D);
    row.each(q + 1, [&](std::int64_t k) {
      const A probability = exp_of(scale * dot<A>(in.query(s, q, h), in.key(s, k, g), D) - sums[r]);
      p[r * L + k] = probability;
      ds[r * L + k] = probability * (dot<A>(gradient, in.value(s, k, g), D) - delta) * scale;
    });
  });
}

template <class T> void backward_as(Stream& stream, Arena& arena, const AttentionShape& shape, const Tensor& dqkv, const Tensor& dout,
                                    const Tensor& qkv, const Tensor& out, const Tensor& lse) {
  using A = Accumulator<T>;
  const Arena::Frame frame(arena);
  const std::int64_t S = shape.sequences, L = shape.length, H = shape.heads, G = shape.kv_heads, D = shape.head_dim;
  A* p = arena.temp(dtype_of<A>, {S * H * L, L}).template as<A>();
  A* ds = arena.temp(dtype_of<A>, {S * H * L, L}).template as<A>();
  score_gradients<T>(stream, shape, p, ds, dout, qkv, out, lse);
  const Heads<T> in = heads_of<T>(shape, qkv), gradient = heads_of<T>(shape, dqkv);
  const T* dy = dout.as<T>();
  launch_rows(stream, "attention_dq", S * H * L, KOKKOS_LAMBDA(const Row& row, std::int64_t r) {
    const std::int64_t q = r % L, h = r / L % H, s = r / (L * H), g = in.kv_head(h);
    row.each(D, [&](std::int64_t d) {
      A total = 0;
      for (std::int64_t k = 0; k <= q; ++k) total += ds[r * L + k] * A(in.key(s, k, g)[d]);
      gradient.query(s, q, h)[d] = T(total);
    });
  });
  launch_rows(stream, "attention_dkv", S * G * L, KOKKOS_LAMBDA(const Row& row, std::int64_t r) {
    const std::int64_t k = r % L, g = r / L % G, s = r / (L * G), heads = H / G;
    row.each(D, [&](std::int64_t d) {
      A dk = 0, dv = 0;
      for (std::int64_t h = g * heads; h < (g + 1) * heads; ++h)
        for (std::int64_t q = k; q < L; ++q) {
          const std::int64_t at = ((s * H + h) * L + q) * L + k;
          dk += ds[at] * A(in.query(s, q, h)[d]);
          dv += p[at] * A(dy[(s * L + q) * H * D + h * D + d]);
        }
      gradient.key(s, k, g)[d] = T(dk);
      gradient.value(s, k, g)[d] = T(dv);
    });
  });
}

}  // namespace

void forward(Stream& stream, Arena& arena, const AttentionShape& shape, const Tensor& out, const Tensor& lse, const Tensor& qkv) {
  dispatch_real(qkv.type, "attention_forward", [&]<class T>() { forward_as<T>(stream, arena, shape, out, lse, qkv); });
}

void backward(Stream& stream, Arena& arena, const AttentionShape& shape, const Tensor& dqkv, const Tensor& dout, const Tensor& qkv,
              const Tensor& out, const Tensor& lse) {
  dispatch_real(qkv.type, "attention_backward", [&]<class T>() { backward_as<T>(stream, arena, shape, dqkv, dout, qkv, out, lse); });
}

}  // namespace tessera::attention
