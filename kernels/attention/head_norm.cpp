#include "kernels/attention/head_norm.hpp"

#include <algorithm>

#include "kernels/base/strips.hpp"
#include "kernels/gemm/gemm.hpp"

namespace tessera {
namespace {

// Tokens whose contributions to a weight's gradient are summed by one work item.
constexpr std::int64_t block = 64;

// A token's row as segments of one norm each: queries, then keys; those from `normed` on are values, which are not
// normalised. Work item i is segment i % all of token i / all.
struct Segments {
  std::int64_t queries, normed, all, q_width, k_width, tokens;

  KOKKOS_INLINE_FUNCTION std::int64_t width(std::int64_t s) const { return s < queries ? q_width : k_width; }
  // Index of a segment's first element.
  KOKKOS_INLINE_FUNCTION std::int64_t begin(std::int64_t token, std::int64_t s) const {
    const std::int64_t of_q = queries * q_width, columns = of_q + (all - queries) * k_width;
    return token * columns + (s < queries ? s * q_width : of_q + (s - queries) * k_width);
  }
};

// The segments of qkv whose number rstd [tokens, segments] tells: heads, or all queries and all keys.
Segments segments_of(const char* kernel, const AttentionShape& s, const HeadNorm& norm) {
  const Tensor &qkv = norm.qkv, &rstd = norm.rstd;
  const std::int64_t tokens = s.sequences * s.length, n = s.head_dim;
  require(n > 0 && qkv.elements() == tokens * s.columns(), kernel, "qkv is [tokens, (H + 2 G) D]");
  if (rstd.elements() == tokens * qk_norms(s, QkNormOver::head))
    return {s.heads, s.heads + s.kv_heads, s.heads + 2 * s.kv_heads, n, n, tokens};
  require(rstd.elements() == tokens * qk_norms(s, QkNormOver::width), kernel, "rstd is [tokens, H + G] or [tokens, 2]");
  return {1, 2, 3, s.heads * n, s.kv_heads * n, tokens};  // mutation: norm_of_one_head_for_all
}

void check_weights(const char* kernel, const Segments& s, const HeadNorm& norm) {
  require(norm.q.elements() == s.q_width && norm.k.elements() == s.k_width, kernel,
          "weights are [D], or [H D] and [G D]");
}

template <class T>
void forward(Stream& stream, const Segments& h, const HeadNorm& norm, const Tensor& y) {
  using A = Accumulator<T>;
  T* const out = y.as<T>();
  A* const rstds = norm.rstd.as<A>();
  const T *const in = norm.qkv.as<T>(), *const of_q = norm.q.as<T>(), *const of_k = norm.k.as<T>();
  const A small = A(norm.eps);
  launch_rows(stream, "head_norm_forward", h.tokens * h.all, KOKKOS_LAMBDA(const Row& row, std::int64_t i) {
    const std::int64_t head = i % h.all, n = h.width(head), at = h.begin(i / h.all, head);
    const T* const v = in + at;
    T* const to = out + at;
    if (head >= h.normed) return row.each(n, [=](std::int64_t j) { to[j] = v[j]; });
    const T* const w = head < h.queries ? of_q : of_k;
    const A square = buffered_sum<A>(row, n, [=](std::int64_t j) { return A(v[j]) * A(v[j]); });
    const A scale = A(1) / Kokkos::sqrt(square / A(n) + small);
    row.each(n, [=](std::int64_t j) { to[j] = T(A(v[j]) * scale * A(w[j])); });
    row.once([=] { rstds[i / h.all * h.normed + head] = scale; });
  });
}

template <class T>
void backward(Stream& stream, const Segments& h, const HeadNorm& norm, const Tensor& dqkv) {
  using A = Accumulator<T>;
  T* const out = dqkv.as<T>();
  const A* const rstds = norm.rstd.as<A>();
  const T *const in = norm.qkv.as<T>(), *const of_q = norm.q.as<T>(), *const of_k = norm.k.as<T>();
  launch_rows(stream, "head_norm_backward", h.tokens * h.normed, KOKKOS_LAMBDA(const Row& row, std::int64_t i) {
    const std::int64_t head = i % h.normed, n = h.width(head), at = h.begin(i / h.normed, head);
    const T *const v = in + at, *const w = head < h.queries ? of_q : of_k;
    T* const d = out + at;
    const A scale = rstds[i];
    const A sum = buffered_sum<A>(row, n, [=](std::int64_t j) { return A(d[j]) * A(w[j]) * (A(v[j]) * scale); });
    const A along = sum / A(n);
    row.each(n, [=](std::int64_t j) { d[j] = T(scale * (A(d[j]) * A(w[j]) - A(v[j]) * scale * along)); });
  });
}

// parts [blocks, width]: for each block of tokens, the sum over its segments [first, last), all of that width.
template <class T>
void block_sums(Stream& stream, const Segments& h, std::int64_t first, std::int64_t last, const Tensor& parts,
                const Tensor& dy, const Tensor& qkv, const Tensor& rstd) {
  using A = Accumulator<T>;
  A* const out = parts.as<A>();
  const A* const rstds = rstd.as<A>();
  const T *const up = dy.as<T>(), *const in = qkv.as<T>();
  const std::int64_t width = parts.columns();
  launch_strips(stream, "head_norm_sums", parts.rows(), width, KOKKOS_LAMBDA(std::int64_t b, const Strip& strip) {
    A sum[Strip::width];
    strip.each([&](std::int64_t l, std::int64_t) { sum[l] = 0; });
    const std::int64_t end = (b + 1) * block < h.tokens ? (b + 1) * block : h.tokens;
    for (std::int64_t t = b * block; t < end; ++t)
      for (std::int64_t head = first; head < last; ++head) {
        const A scale = rstds[t * h.normed + head];
        const std::int64_t at = h.begin(t, head);
        strip.each([&](std::int64_t l, std::int64_t j) { sum[l] += A(up[at + j]) * (A(in[at + j]) * scale); });
      }
    strip.each([&](std::int64_t l, std::int64_t j) { out[b * width + j] = sum[l]; });
  });
}

}  // namespace

void head_norm_forward(Stream& stream, const AttentionShape& shape, const HeadNorm& norm, const Tensor& y) {
  constexpr const char* kernel = "head_norm_forward";
  const Segments segments = segments_of(kernel, shape, norm);
  require(y.elements() == norm.qkv.elements(), kernel, "y has the shape of qkv");
  check_weights(kernel, segments, norm);
  dispatch_real(norm.qkv.type, kernel, [&]<class T>() { forward<T>(stream, segments, norm, y); });
}

void head_norm_backward(Stream& stream, const AttentionShape& shape, const HeadNorm& norm, const Tensor& dqkv) {
  constexpr const char* kernel = "head_norm_backward";
  const Segments segments = segments_of(kernel, shape, norm);
  require(dqkv.elements() == norm.qkv.elements(), kernel, "dqkv has the shape of qkv");
  check_weights(kernel, segments, norm);
  dispatch_real(norm.qkv.type, kernel, [&]<class T>() { backward<T>(stream, segments, norm, dqkv); });
}

void head_norm_weight_gradients(Stream& stream, Arena& arena, const AttentionShape& shape, const HeadNorm& norm,
                                const Tensor& dy, const Gradient& dq, const Gradient& dk) {
  constexpr const char* kernel = "head_norm_weight_gradients";
  const Tensor &qkv = norm.qkv, &rstd = norm.rstd;
  const Segments segments = segments_of(kernel, shape, norm);
  require(dy.elements() == qkv.elements(), kernel, "dy has the shape of qkv");
  const Arena::Frame frame(arena);
  const auto add = [&](const Gradient& gradient, std::int64_t first, std::int64_t last) {
    const Tensor parts = arena.temp(rstd.type, {ceil_div(segments.tokens, block), segments.width(first)});
    dispatch_real(qkv.type, kernel,
                  [&]<class T>() { block_sums<T>(stream, segments, first, last, parts, dy, qkv, rstd); });
    bias_gradient(stream, gradient, parts);
  };
  add(dq, 0, segments.queries);
  add(dk, segments.queries, segments.normed);
}

}  // namespace tessera
