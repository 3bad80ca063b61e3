#include "kernels/base/strips.hpp"
#include "kernels/moe/back.hpp"

namespace tessera {
namespace {

// Rows of one part: few enough that their x stays in the cache while every expert reads it.
constexpr std::int64_t block = moe::rows_of_part;

template <class T> void forward(Stream& stream, const Tensor& logits, const Tensor& x, const Tensor& w) {
  using A = Accumulator<T>;
  const std::int64_t n = x.columns(), experts = logits.columns();
  A* const out = logits.as<A>();
  const T *const in = x.as<T>(), *const weight = w.as<T>();
  launch_rows(stream, "router_forward", x.rows(), KOKKOS_LAMBDA(const Row& row, std::int64_t m) {
    const T* const v = in + m * n;
    for (std::int64_t e = 0; e < experts; ++e) {
      const T* const we = weight + e * n;
      const A logit = buffered_sum<A>(row, n, [=](std::int64_t j) { return A(v[j]) * A(we[j]); });
      row.once([=] { out[m * experts + e] = logit; });
    }
  });
}

template <class T> void input_gradient(Stream& stream, const Tensor& dx, const Tensor& dlogits, const Tensor& w) {
  using A = Accumulator<T>;
  const std::int64_t n = dx.columns(), experts = dlogits.columns();
  T* const out = dx.as<T>();
  const A* const up = dlogits.as<A>();
  const T* const weight = w.as<T>();
  launch_strips(stream, "router_input_gradient", dx.rows(), n, KOKKOS_LAMBDA(std::int64_t m, const Strip& strip) {
    A total[Strip::width];
    strip.each([&](std::int64_t l, std::int64_t c) { total[l] = A(out[m * n + c]); });
    for (std::int64_t e = 0; e < experts; ++e) {
      const A d = up[m * experts + e];
      strip.each([&](std::int64_t l, std::int64_t c) { total[l] += d * A(weight[e * n + c]); });
    }
    strip.each([&](std::int64_t l, std::int64_t c) { out[m * n + c] = T(total[l]); });
  });
}

// partial [blocks, E, C] = dlogits^T x, for every block of rows.
template <class T> void weight_partials(Stream& stream, const Tensor& partial, const Tensor& dlogits, const Tensor& x) {
  using A = Accumulator<T>;
  const std::int64_t n = x.columns(), rows = x.rows(), experts = dlogits.columns();
  A* const parts = partial.as<A>();
  const A* const up = dlogits.as<A>();
  const T* const in = x.as<T>();
  launch_strips(stream, "router_weight_partials", partial.shape[0] * experts, n,
                KOKKOS_LAMBDA(std::int64_t i, const Strip& strip) {
    const std::int64_t b = i / experts, e = i % experts, end = (b + 1) * block < rows ? (b + 1) * block : rows;
    A total[Strip::width];
    strip.each([&](std::int64_t l, std::int64_t) { total[l] = 0; });
    for (std::int64_t r = b * block; r < end; ++r) {
      const A d = up[r * experts + e];
      const T* const v = in + r * n;
      strip.each([&](std::int64_t l, std::int64_t c) { total[l] += d * A(v[c]); });
    }
    strip.each([&](std::int64_t l, std::int64_t c) { parts[i * n + c] = total[l]; });
  });
}

// dw = beta dw + the sum over blocks, which is rounded to type P first.
template <class A, class P> void add_blocks(Stream& stream, const Gradient& dw, const Tensor& partial) {
  const std::int64_t n = dw.sum.elements(), blocks = partial.shape[0];
  const A* const parts = partial.as<A>();
  A* const out = dw.sum.as<A>();
  const A beta = A(dw.beta);
  launch_strips(stream, "router_weight_sum", 1, n, KOKKOS_LAMBDA(std::int64_t, const Strip& strip) {
    A total[Strip::width];
    strip.each([&](std::int64_t l, std::int64_t) { total[l] = 0; });
    for (std::int64_t b = 0; b < blocks; ++b)
      strip.each([&](std::int64_t l, std::int64_t c) { total[l] += parts[b * n + c]; });
    strip.each([&](std::int64_t l, std::int64_t c) {
      const A product = A(P(total[l]));
      out[c] = beta == A(0) ? product : beta * out[c] + product;
    });
  });
}

void check(const char* kernel, const Tensor& x, const Tensor& logits, const Tensor& w) {
  require(x.rows() == logits.rows() && w.rows() == logits.columns() && w.columns() == x.columns(), kernel,
          "x is [M,C], logits [M,E], w [E,C]");
}

}  // namespace

void router_forward(Stream& stream, const Tensor& logits, const Tensor& x, const Tensor& w) {
  check("router_forward", x, logits, w);
  if (moe::router_forward(stream, logits, x, w)) return;
  dispatch_real(x.type, "router_forward", [&]<class T>() { forward<T>(stream, logits, x, w); });
}

void router_input_gradient(Stream& stream, const Tensor& dx, const Tensor& dlogits, const Tensor& w) {
  check("router_input_gradient", dx, dlogits, w);
  if (moe::router_input_gradient(stream, dx, dlogits, w)) return;
  dispatch_real(dx.type, "router_input_gradient", [&]<class T>() { input_gradient<T>(stream, dx, dlogits, w); });
}

void router_weight_gradient(Stream& stream, Arena& arena, const Gradient& dw, const Tensor& dlogits, const Tensor& x,
                            Accumulation how) {
  check("router_weight_gradient", x, dlogits, dw.sum);
  dispatch_real(x.type, "router_weight_gradient", [&]<class T>() {
    using A = Accumulator<T>;
    const Arena::Frame frame(arena);
    const Tensor partial = arena.temp(dtype_of<A>, Shape{ceil_div(x.rows(), block), dlogits.columns(), x.columns()});
    if (!moe::router_weight_partials(stream, partial, dlogits, x)) weight_partials<T>(stream, partial, dlogits, x);
    if (how == Accumulation::fused) add_blocks<A, A>(stream, dw, partial);
    else add_blocks<A, T>(stream, dw, partial);
  });
}

}  // namespace tessera
