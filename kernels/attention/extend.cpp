#include <algorithm>
#include <cmath>

#include "kernels/attention/attention.hpp"
#include "kernels/base/index.hpp"
#include "kernels/base/math.hpp"
#include "kernels/base/strips.hpp"

namespace tessera {
namespace {

// Softmax weights that exist at once, of all rows and heads of a launch; bounds its scratch memory.
constexpr std::int64_t weights_at_once = 1 << 22;

// Dot product in a fixed number of lanes, which the host's compiler vectorises.
template <class A, class T>
KOKKOS_INLINE_FUNCTION A dot(const T* a, const T* b, std::int64_t n) {
  constexpr int lanes = on_host ? 16 : 4;
  A lane[lanes] = {};
  const std::int64_t whole = n / lanes * lanes;
  for (std::int64_t d = 0; d < whole; d += lanes)
    for (int l = 0; l < lanes; ++l) lane[l] += A(a[d + l]) * A(b[d + l]);
  for (std::int64_t d = whole; d < n; ++d) lane[d - whole] += A(a[d]) * A(b[d]);
  for (int width = lanes / 2; width > 0; width /= 2)
    for (int l = 0; l < width; ++l) lane[l] += lane[l + width];
  return lane[0];
}

// One launch's part of the work: item i is head i % heads of token row + i / heads.
template <class T>
struct Extension {
  using A = Accumulator<T>;
  std::int64_t heads, shared, dim, columns, width, first;  // shared: query heads to a key head; width: of the cache
  const T* qkv;
  T* cache;
  T* out;
  A* weights;
  std::int64_t room;  // keys that a row of weights holds

  KOKKOS_FUNCTION std::int64_t seen(std::int64_t token) const { return first + token + 1; }
  KOKKOS_FUNCTION const T* keys(std::int64_t head) const { return cache + head / shared * dim; }
  KOKKOS_FUNCTION const T* values(std::int64_t head) const { return keys(head) + width / 2; }
};

template <class T>
void append(Stream& stream, const Extension<T>& e, std::int64_t tokens) {
  launch_rows(stream, "attention_cache", tokens, KOKKOS_LAMBDA(const Row& row, std::int64_t r) {
    const T* const from = e.qkv + r * e.columns + e.heads * e.dim;
    T* const to = e.cache + (e.first + r) * e.width;
    row.each(e.width, [=](std::int64_t j) { to[j] = from[j]; });
  });
}

template <class T, class A = Accumulator<T>>
void weigh(Stream& stream, const Extension<T>& e, std::int64_t begin, std::int64_t tokens, A scale) {
  launch_rows(stream, "attention_extend_weights", tokens * e.heads, KOKKOS_LAMBDA(const Row& row, std::int64_t i) {
    const std::int64_t token = begin + i / e.heads, head = i % e.heads, n = e.seen(token);
    const T *const query = e.qkv + token * e.columns + head * e.dim, *const key = e.keys(head);
    A* const w = e.weights + i * e.room;
    const std::int64_t dim = e.dim, width = e.width;
    row.each_loop(n, [=](std::int64_t u) { w[u] = scale * dot<A>(query, key + u * width, dim); });
    const A top = row.max<A>(n, [=](std::int64_t u) { return w[u]; });
    row.each(n, [=](std::int64_t u) { w[u] = exp_of(w[u] - top); });
    const A total = row.sum<A>(n, [=](std::int64_t u) { return w[u]; });
    row.each(n, [=](std::int64_t u) { w[u] /= total; });
  });
}

template <class T>
void sum_values(Stream& stream, const Extension<T>& e, std::int64_t begin, std::int64_t tokens) {
  using A = Accumulator<T>;
  launch_strips(
      stream, "attention_extend", tokens * e.heads, e.dim, KOKKOS_LAMBDA(std::int64_t i, const Strip& strip) {
        const std::int64_t token = begin + i / e.heads, head = i % e.heads, n = e.seen(token), width = e.width;
        const T* const value = e.values(head);
        const A* const w = e.weights + i * e.room;
        A sum[Strip::width];
        strip.each([&](std::int64_t l, std::int64_t) { sum[l] = 0; });
        for (std::int64_t u = 0; u < n; ++u)
          strip.each([&](std::int64_t l, std::int64_t d) { sum[l] += w[u] * A(value[u * width + d]); });
        T* const to = e.out + (token * e.heads + head) * e.dim;
        strip.each([&](std::int64_t l, std::int64_t d) { to[d] = T(sum[l]); });
      });
}

template <class T>
void extend(Stream& stream, Arena& arena, const AttentionShape& s, const Tensor& out, const Tensor& cache,
            const Tensor& qkv, std::int64_t first) {
  using A = Accumulator<T>;
  const Arena::Frame frame(arena);
  // By the cache's capacity and not by the keys so far, so that a sequence never takes more scratch than was planned.
  const std::int64_t capacity = cache.rows(), keys = first + s.length;
  const std::int64_t at_once = std::clamp<std::int64_t>(weights_at_once / (s.heads * capacity), 1, s.length);
  const Tensor weights = arena.temp(dtype_of<A>, {at_once * s.heads, capacity});
  const Extension<T> e{s.heads,      s.heads / s.kv_heads, s.head_dim,    s.columns(),
                       cache.columns(), first,             qkv.as<T>(),   cache.as<T>(),
                       out.as<T>(),  weights.as<A>(),      keys};
  append(stream, e, s.length);
  const A scale = A(1 / std::sqrt(static_cast<double>(s.head_dim)));
  for (std::int64_t begin = 0; begin < s.length; begin += at_once) {
    const std::int64_t tokens = std::min(at_once, s.length - begin);
    weigh(stream, e, begin, tokens, scale);
    sum_values(stream, e, begin, tokens);
  }
}

}  // namespace

void attention_extend(Stream& stream, Arena& arena, const AttentionShape& shape, const Tensor& out,
                      const Tensor& cache, const Tensor& qkv, std::int64_t first) {
  constexpr const char* kernel = "attention_extend";
  require(shape.sequences == 1 && shape.length > 0 && shape.head_dim > 0, kernel, "takes tokens of one sequence");
  require(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0, kernel, "kv_heads must divide heads");
  require(qkv.elements() == shape.length * shape.columns(), kernel, "qkv is [tokens, (H + 2 G) D]");
  require(out.elements() == shape.length * shape.heads * shape.head_dim, kernel, "out is [tokens, H D]");
  require(cache.columns() == 2 * shape.kv_heads * shape.head_dim, kernel, "the cache is [capacity, 2 G D]");
  require(first >= 0 && first + shape.length <= cache.rows(), kernel, "the cache is full");
  require(out.type == qkv.type && cache.type == qkv.type, kernel, "operands must be of one type");
  dispatch_real(qkv.type, kernel, [&]<class T>() { extend<T>(stream, arena, shape, out, cache, qkv, first); });
}

}  // namespace tessera
