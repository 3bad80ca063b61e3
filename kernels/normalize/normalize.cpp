#include "kernels/normalize/normalize.hpp"

#include "kernels/base/strips.hpp"
#include "kernels/normalize/back.hpp"

namespace tessera {
namespace {

// Rows whose contributions to a weight's gradient are summed by one work item.
constexpr std::int64_t block = 64;

template <class A> struct Moments {
  A mean, rstd;
};

template <Norm kind, class T, class A = Accumulator<T>>
KOKKOS_INLINE_FUNCTION Moments<A> moments_of(const Row& row, std::int64_t n, const T* x, A eps) {
  const A share = A(1) / A(n);
  const A mean = kind == Norm::layer ? buffered_sum<A>(row, n, [=](std::int64_t j) { return A(x[j]); }) * share : A(0);
  const A square = buffered_sum<A>(row, n, [=](std::int64_t j) { return (A(x[j]) - mean) * (A(x[j]) - mean); });
  return {mean, A(1) / Kokkos::sqrt(square * share + eps)};
}

template <class T, Norm kind>
void forward(Stream& stream, const NormForward& args) {
  using A = Accumulator<T>;
  const A small = A(args.eps);
  const std::int64_t n = args.x.columns();
  T *const out = args.y.as<T>(), *const sum = args.branch ? args.residual_out.as<T>() : nullptr;
  const T *const in = args.x.as<T>(), *const added = args.branch ? args.branch.as<T>() : nullptr;
  const T *const w = args.weight.as<T>(), *const b = args.bias ? args.bias.as<T>() : nullptr;
  A *const means = kind == Norm::layer ? args.mean.as<A>() : nullptr, *const rstds = args.rstd.as<A>();
  launch_rows(stream, "norm_forward", args.x.rows(), KOKKOS_LAMBDA(const Row& row, std::int64_t r) {
    const T* v = in + r * n;
    if (added != nullptr) {
      const T *const left = v, *const right = added + r * n;
      T* const total = sum + r * n;
      row.each(n, [=](std::int64_t j) { total[j] = T(A(left[j]) + A(right[j])); });
      v = total;
    }
    const Moments<A> m = moments_of<kind>(row, n, v, small);
    T* const to = out + r * n;
    if (b != nullptr)
      row.each(n, [=](std::int64_t j) { to[j] = T((A(v[j]) - m.mean) * m.rstd * A(w[j]) + A(b[j])); });
    else
      row.each(n, [=](std::int64_t j) { to[j] = T((A(v[j]) - m.mean) * m.rstd * A(w[j])); });
    row.once([=] {
      if (means != nullptr) means[r] = m.mean;
      rstds[r] = m.rstd;
    });
  });
}

template <class T, Norm kind>
void backward(Stream& stream, const NormBackward& args) {
  using A = Accumulator<T>;
  const std::int64_t n = args.x.columns();
  T* const out = args.dx.as<T>();
  const T *const up = args.dy.as<T>(), *const in = args.x.as<T>(), *const w = args.weight.as<T>();
  const A *const means = kind == Norm::layer ? args.mean.as<A>() : nullptr, *const rstds = args.rstd.as<A>();
  launch_rows(stream, "norm_backward", args.x.rows(), KOKKOS_LAMBDA(const Row& row, std::int64_t r) {
    const T *const v = in + r * n, *const g = up + r * n;
    T* const d = out + r * n;
    const A center = means != nullptr ? means[r] : A(0), scale = rstds[r], share = A(1) / A(n);
    const A along = share * buffered_sum<A>(row, n, [=](std::int64_t j) {
      return A(g[j]) * A(w[j]) * ((A(v[j]) - center) * scale);
    });
    const A average =
        kind == Norm::layer ? share * buffered_sum<A>(row, n, [=](std::int64_t j) { return A(g[j]) * A(w[j]); }) : A(0);
    row.each(n, [=](std::int64_t j) {
      const A normal = (A(v[j]) - center) * scale;
      d[j] = T(A(d[j]) + scale * (A(g[j]) * A(w[j]) - average - normal * along));
    });
  });
}

// out = beta out + the sum of the partials [blocks, C], in ascending order.
template <class A> void add_blocks(Stream& stream, const Gradient& gradient, const Tensor& partial) {
  const std::int64_t n = partial.columns(), blocks = partial.shape[0];
  const A* const parts = partial.as<A>();
  A* const out = gradient.sum.as<A>();
  const A beta = A(gradient.beta);
  launch_strips(stream, "norm_weight_sum", 1, n, KOKKOS_LAMBDA(std::int64_t, const Strip& strip) {
    A total[Strip::width];
    strip.each([&](std::int64_t l, std::int64_t) { total[l] = 0; });
    for (std::int64_t b = 0; b < blocks; ++b)
      strip.each([&](std::int64_t l, std::int64_t c) { total[l] += parts[b * n + c]; });
    strip.each([&](std::int64_t l, std::int64_t c) { out[c] = beta == A(0) ? total[l] : beta * out[c] + total[l]; });
  });
}

// The sums over every block of rows of dy (x - mean) rstd and, unless `bias` is empty, of dy.
template <class T>
void block_sums(Stream& stream, Norm kind, const Tensor& weight, const Tensor& bias, const NormBackward& args) {
  using A = Accumulator<T>;
  const std::int64_t n = args.x.columns(), rows = args.x.rows();
  A *const weights = weight.as<A>(), *const biases = bias ? bias.as<A>() : nullptr;
  const T *const up = args.dy.as<T>(), *const in = args.x.as<T>();
  const A *const means = kind == Norm::layer ? args.mean.as<A>() : nullptr, *const rstds = args.rstd.as<A>();
  launch_strips(stream, "norm_block_sums", weight.shape[0], n, KOKKOS_LAMBDA(std::int64_t b, const Strip& strip) {
    A along[Strip::width], plain[Strip::width];
    strip.each([&](std::int64_t l, std::int64_t) { along[l] = plain[l] = 0; });
    const std::int64_t end = (b + 1) * block < rows ? (b + 1) * block : rows;
    for (std::int64_t r = b * block; r < end; ++r) {
      const A center = means != nullptr ? means[r] : A(0), scale = rstds[r];
      const T *const v = in + r * n, *const g = up + r * n;
      strip.each([&](std::int64_t l, std::int64_t c) {
        along[l] += A(g[c]) * ((A(v[c]) - center) * scale);
        plain[l] += A(g[c]);
      });
    }
    strip.each([&](std::int64_t l, std::int64_t c) { weights[b * n + c] = along[l]; });
    if (biases != nullptr) strip.each([&](std::int64_t l, std::int64_t c) { biases[b * n + c] = plain[l]; });
  });
}

void check_rows(const char* kernel, Norm kind, const Tensor& x, const Tensor& mean, const Tensor& rstd) {
  require(x.columns() > 0, kernel, "rows must not be empty");
  require(rstd.elements() == x.rows(), kernel, "rstd is one value a row");
  require(kind == Norm::rms || mean.elements() == x.rows(), kernel, "mean is one value a row");
}

/// Of the gradients in `args`: those of the input.
void check_input(const char* kernel, const NormBackward& args) {
  require(args.dx.shape == args.x.shape && args.dy.shape == args.x.shape, kernel, "dx and dy have the shape of x");
  require(args.weight.elements() == args.x.columns(), kernel, "weight is one value a column");
}

void check_gradients(const char* kernel, const Tensor& x, const Gradient& dweight, const Gradient& dbias) {
  require(dweight.sum.elements() == x.columns(), kernel, "dweight is one value a column");
  require(!dbias.sum || dbias.sum.elements() == x.columns(), kernel, "dbias is one value a column");
}

bool works(const Stream& stream, const Tensor& x) { return !stream.dry() && x.rows() > 0; }

}  // namespace

void norm_forward(Stream& stream, Norm kind, const NormForward& args) {
  const Tensor& x = args.x;
  check_rows("norm_forward", kind, x, args.mean, args.rstd);
  require(args.y.shape == x.shape, "norm_forward", "y has the shape of x");
  require(!args.branch || (args.branch.shape == x.shape && args.residual_out.shape == x.shape), "norm_forward",
          "branch and residual_out have the shape of x");
  require(args.weight.elements() == x.columns() && (!args.bias || args.bias.elements() == x.columns()), "norm_forward",
          "weight and bias are one value a column");
  if (works(stream, x) && normalize::forward(stream, kind, args)) return;
  dispatch_real(x.type, "norm_forward", [&]<class T>() {
    kind == Norm::layer ? forward<T, Norm::layer>(stream, args) : forward<T, Norm::rms>(stream, args);
  });
}

void norm_backward(Stream& stream, Norm kind, const NormBackward& args) {
  check_rows("norm_backward", kind, args.x, args.mean, args.rstd);
  check_input("norm_backward", args);
  if (works(stream, args.x) && normalize::backward(stream, kind, args)) return;
  dispatch_real(args.x.type, "norm_backward", [&]<class T>() {
    kind == Norm::layer ? backward<T, Norm::layer>(stream, args) : backward<T, Norm::rms>(stream, args);
  });
}

void norm_weight_gradient(Stream& stream, Arena& arena, Norm kind, const Gradient& dweight, const Gradient& dbias,
                          const NormBackward& args) {
  check_rows("norm_weight_gradient", kind, args.x, args.mean, args.rstd);
  require(args.dy.shape == args.x.shape, "norm_weight_gradient", "dy has the shape of x");
  check_gradients("norm_weight_gradient", args.x, dweight, dbias);
  dispatch_real(args.x.type, "norm_weight_gradient", [&]<class T>() {
    using A = Accumulator<T>;
    const Arena::Frame frame(arena);
    const Shape blocks{ceil_div(args.x.rows(), block), args.x.columns()};
    const Tensor weight = arena.temp(dtype_of<A>, blocks);
    const Tensor bias = dbias.sum ? arena.temp(dtype_of<A>, blocks) : Tensor{};
    block_sums<T>(stream, kind, weight, bias, args);
    add_blocks<A>(stream, dweight, weight);
    if (bias) add_blocks<A>(stream, dbias, bias);
  });
}

void norm_gradients(Stream& stream, Arena& arena, Norm kind, const Gradient& dweight, const Gradient& dbias,
                    const NormBackward& args) {
  check_rows("norm_gradients", kind, args.x, args.mean, args.rstd);
  check_gradients("norm_gradients", args.x, dweight, dbias);
  check_input("norm_gradients", args);
  {
    const Arena::Frame frame(arena);
    const Shape blocks{ceil_div(args.x.rows(), normalize::rows_of_part), args.x.columns()};
    const Tensor parts = arena.temp(args.rstd.type, blocks);
    const Tensor bias_parts = dbias.sum ? arena.temp(args.rstd.type, blocks) : Tensor{};
    if (works(stream, args.x) && normalize::gradients(stream, kind, dweight, dbias, args, parts, bias_parts)) return;
  }
  norm_weight_gradient(stream, arena, kind, dweight, dbias, args);
  norm_backward(stream, kind, args);
}

}  // namespace tessera
