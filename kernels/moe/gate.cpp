#include "kernels/base/strips.hpp"
#include "kernels/moe/back.hpp"

namespace tessera {
namespace {

template <class T> void forward(Stream& stream, const Tensor& y, const Tensor& answer, const Tensor& logits) {
  using A = Accumulator<T>;
  const std::int64_t n = y.columns();
  T* const out = y.as<T>();
  const T* const in = answer.as<T>();
  const A* const z = logits.as<A>();
  launch_rows(stream, "gate_forward", y.rows(), KOKKOS_LAMBDA(const Row& row, std::int64_t m) {
    const A s = moe::sigmoid(z[m]);
    row.each(n, [=](std::int64_t c) { out[m * n + c] = T(s * A(in[m * n + c])); });
  });
}

template <class T>
void backward(Stream& stream, const GateBackward& args) {
  using A = Accumulator<T>;
  const std::int64_t n = args.dy.columns();
  T* const out = args.danswer.as<T>();
  A* const dz = args.dlogits.as<A>();
  const T *const up = args.dy.as<T>(), *const in = args.answer.as<T>();
  const A* const z = args.logits.as<A>();
  launch_rows(stream, "gate_backward", args.dy.rows(), KOKKOS_LAMBDA(const Row& row, std::int64_t m) {
    const T *const g = up + m * n, *const a = in + m * n;
    const A s = moe::sigmoid(z[m]);
    const A along = buffered_sum<A>(row, n, [=](std::int64_t c) { return A(g[c]) * A(a[c]); });
    row.each(n, [=](std::int64_t c) { out[m * n + c] = T(s * A(g[c])); });
    row.once([=] { dz[m] = s * (A(1) - s) * along; });
  });
}

void check(const char* kernel, const Tensor& y, const Tensor& answer, const Tensor& logits) {
  require(y.shape == answer.shape && y.type == answer.type && logits.elements() == y.rows(), kernel,
          "rows are [M,C] of one type, logits [M]");
}

}  // namespace

void gate_forward(Stream& stream, const Tensor& y, const Tensor& answer, const Tensor& logits) {
  check("gate_forward", y, answer, logits);
  dispatch_real(y.type, "gate_forward", [&]<class T>() { forward<T>(stream, y, answer, logits); });
}

void gate_backward(Stream& stream, const GateBackward& args) {
  check("gate_backward", args.dy, args.answer, args.logits);
  require(args.danswer.shape == args.dy.shape && args.dlogits.elements() == args.dy.rows(), "gate_backward",
          "danswer is [M,C], dlogits [M]");
  dispatch_real(args.dy.type, "gate_backward", [&]<class T>() { backward<T>(stream, args); });
}

}  // namespace tessera
