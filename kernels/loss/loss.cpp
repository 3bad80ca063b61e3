#include "kernels/loss/loss.hpp"

#include "kernels/base/math.hpp"
#include "kernels/base/strips.hpp"
#include "kernels/loss/back.hpp"

namespace tessera {
namespace {

template <class T>
void row_losses(Stream& stream, const Tensor& losses, const Tensor& dlogits, const Tensor& logits,
                const Tensor& targets, std::int64_t vocabulary, const Tensor& scale) {
  using A = Accumulator<T>;
  const std::int64_t n = vocabulary, padded = logits.columns();
  A* const loss = losses.as<A>();
  T* const out = dlogits ? dlogits.as<T>() : nullptr;
  const T* const in = logits.as<T>();
  const std::int32_t* const target = targets.as<std::int32_t>();
  const double* const factors = dlogits ? scale.as<double>() : nullptr;
  launch_rows(stream, "cross_entropy", logits.rows(), KOKKOS_LAMBDA(const Row& row, std::int64_t m) {
    const T* const z = in + m * padded;
    if (target[m] == no_target) {
      // mutation: gradients_of_no_target
      if (out != nullptr) row.each(padded, [=](std::int64_t j) { out[m * padded + j] = T(A(0)); });
      row.once([=] { loss[m] = A(0); });
      return;
    }
    const A wanted = A(z[target[m]]);  // read before dlogits, which may be the same memory
    const A top = buffered_max<A>(row, n, [=](std::int64_t j) { return A(z[j]); });
    const A sum = buffered_sum<A>(row, n, [=](std::int64_t j) { return exp_of(A(z[j]) - top); });
    if (out != nullptr) {
      T* const d = out + m * padded;
      const A factor = A(*factors), share = factor / sum;
      row.each(n, [=](std::int64_t j) { d[j] = T(exp_of(A(z[j]) - top) * share); });
      row.each(padded - n, [=](std::int64_t j) { d[n + j] = T(A(0)); });
      row.once([=] { d[target[m]] = T(exp_of(wanted - top) * share - factor); });
    }
    row.once([=] { loss[m] = log_of(sum) + (top - wanted); });
  });
}

template <class A> void add_losses(Stream& stream, double* sum, const Tensor& losses) {
  const A* const loss = losses.as<A>();
  const std::int64_t rows = losses.elements();
  launch_rows(stream, "cross_entropy_sum", 1, KOKKOS_LAMBDA(const Row& row, std::int64_t) {
    const double total = row.sum<double>(rows, [=](std::int64_t m) { return static_cast<double>(loss[m]); });
    row.once([=] { *sum += total; });
  });
}

}  // namespace

void cross_entropy(Stream& stream, Arena& arena, double* sum, const Tensor& dlogits, const Tensor& logits,
                   const Tensor& targets, std::int64_t vocabulary, const Tensor& scale) {
  require(targets.elements() == logits.rows(), "cross_entropy", "targets are one a row");
  require(vocabulary > 0 && vocabulary <= logits.columns(), "cross_entropy", "the vocabulary is a part of the columns");
  require(!dlogits || dlogits.shape == logits.shape, "cross_entropy", "dlogits have the shape of logits");
  require(!dlogits || (scale.type == DType::f64 && scale.elements() == 1), "cross_entropy", "the scale is f64 [1]");
  dispatch_real(logits.type, "cross_entropy", [&]<class T>() {
    using A = Accumulator<T>;
    const Arena::Frame frame(arena);
    const Tensor losses = arena.temp(dtype_of<A>, Shape{logits.rows()});
    if (stream.dry() || !loss::row_losses(stream, losses, dlogits, logits, targets, vocabulary, scale))
      row_losses<T>(stream, losses, dlogits, logits, targets, vocabulary, scale);
    if (stream.dry() || !loss::add_losses(stream, sum, losses)) add_losses<A>(stream, sum, losses);
  });
}

}  // namespace tessera
