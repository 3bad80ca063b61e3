#include "kernels/activation/activation.hpp"

#include "kernels/activation/back.hpp"
#include "kernels/base/math.hpp"
#include "kernels/base/strips.hpp"

namespace tessera {
namespace {

using activation::behind, activation::end_of;
using activation::gelu_slope, activation::sigmoid, activation::swiglu, activation::swiglu_slopes;

// Calls f(i) for the elements of rows before the end: without one in loops that know no rows.
template <class F>
void launch_before(Stream& stream, const char* name, const Tensor& rows, const Tensor& end, const F& f) {
  if (!end) return launch_elements(stream, name, rows.elements(), f);
  const std::int32_t* const last = end_of(end);
  const std::int64_t n = rows.columns();
  launch_rows(stream, name, rows.rows(), KOKKOS_LAMBDA(const Row& row, std::int64_t r) {
    if (!behind(last, r)) row.each(n, [=](std::int64_t j) { f(r * n + j); });
  });
}

template <class T>
void gelu_backward_as(Stream& stream, const Tensor& dpre, const Tensor& dy, const Tensor& pre, const Tensor& end) {
  using A = Accumulator<T>;
  T* const out = dpre.as<T>();
  const T *const up = dy.as<T>(), *const x = pre.as<T>();
  launch_before(stream, "gelu_backward", pre, end,
                KOKKOS_LAMBDA(std::int64_t i) { out[i] = T(A(up[i]) * gelu_slope(A(x[i]))); });
}

template <class T> void gelu_forward_as(Stream& stream, const Tensor& y, const Tensor& pre, const Tensor& end) {
  using A = Accumulator<T>;
  T* const out = y.as<T>();
  const T* const x = pre.as<T>();
  launch_before(stream, "gelu_forward", pre, end, KOKKOS_LAMBDA(std::int64_t i) { out[i] = T(gelu_of(A(x[i]))); });
}

template <class T>
void swiglu_forward_as(Stream& stream, const Tensor& y, const Tensor& gate_up, const Tensor& end) {
  using A = Accumulator<T>;
  const std::int32_t* const last = end_of(end);
  const std::int64_t n = y.columns();
  T* const out = y.as<T>();
  const T* const in = gate_up.as<T>();
  launch_rows(stream, "swiglu_forward", y.rows(), KOKKOS_LAMBDA(const Row& row, std::int64_t r) {
    if (behind(last, r)) return;
    const T *const gate = in + 2 * r * n, *const up = gate + n;
    T* const to = out + r * n;
    row.each(n, [=](std::int64_t j) { to[j] = T(swiglu(sigmoid(A(gate[j])), A(gate[j]), A(up[j]))); });
  });
}

template <class T>
void swiglu_backward_as(Stream& stream, const Tensor& dgate_up, const Tensor& dy, const Tensor& gate_up,
                        const Tensor& end) {
  using A = Accumulator<T>;
  const std::int32_t* const last = end_of(end);
  const std::int64_t n = dy.columns();
  T* const out = dgate_up.as<T>();
  const T *const in = gate_up.as<T>(), *const gradient = dy.as<T>();
  launch_rows(stream, "swiglu_backward", dy.rows(), KOKKOS_LAMBDA(const Row& row, std::int64_t r) {
    if (behind(last, r)) return;
    const T *const gate = in + 2 * r * n, *const up = gate + n, *const g = gradient + r * n;
    T *const dgate = out + 2 * r * n, *const dup = dgate + n;
    row.each(n, [=](std::int64_t j) {
      A of_gate, of_up;
      swiglu_slopes(sigmoid(A(gate[j])), A(gate[j]), A(up[j]), A(g[j]), of_gate, of_up);
      dgate[j] = T(of_gate);
      dup[j] = T(of_up);
    });
  });
}

template <class T> void add_as(Stream& stream, const Tensor& y, const Tensor& a, const Tensor& b) {
  using A = Accumulator<T>;
  T* const out = y.as<T>();
  const T *const left = a.as<T>(), *const right = b.as<T>();
  launch_elements(stream, "add", y.elements(),
                  KOKKOS_LAMBDA(std::int64_t i) { out[i] = T(A(left[i]) + A(right[i])); });
}

void check_halves(const char* kernel, const Tensor& whole, const Tensor& half) {
  require(whole.columns() == 2 * half.columns() && whole.rows() == half.rows(), kernel,
          "gate_up is [M,2F], y is [M,F]");
}

}  // namespace

void gelu_backward(Stream& stream, const Tensor& dpre, const Tensor& dy, const Tensor& pre, const Tensor& end) {
  require(dpre.elements() == pre.elements() && dy.elements() == pre.elements(), "gelu_backward", "shapes differ");
  if (activation::gelu_backward(stream, dpre, dy, pre, end)) return;
  dispatch_real(pre.type, "gelu_backward", [&]<class T>() { gelu_backward_as<T>(stream, dpre, dy, pre, end); });
}

void gelu_forward(Stream& stream, const Tensor& y, const Tensor& pre, const Tensor& end) {
  require(y.elements() == pre.elements(), "gelu_forward", "shapes differ");
  if (activation::gelu_forward(stream, y, pre, end)) return;
  dispatch_real(pre.type, "gelu_forward", [&]<class T>() { gelu_forward_as<T>(stream, y, pre, end); });
}

void swiglu_forward(Stream& stream, const Tensor& y, const Tensor& gate_up, const Tensor& end) {
  check_halves("swiglu_forward", gate_up, y);
  if (activation::swiglu_forward(stream, y, gate_up, end)) return;
  dispatch_real(y.type, "swiglu_forward", [&]<class T>() { swiglu_forward_as<T>(stream, y, gate_up, end); });
}

void swiglu_backward(Stream& stream, const Tensor& dgate_up, const Tensor& dy, const Tensor& gate_up,
                     const Tensor& end) {
  check_halves("swiglu_backward", gate_up, dy);
  require(dgate_up.shape == gate_up.shape, "swiglu_backward", "dgate_up has the shape of gate_up");
  if (activation::swiglu_backward(stream, dgate_up, dy, gate_up, end)) return;
  dispatch_real(dy.type, "swiglu_backward",
                [&]<class T>() { swiglu_backward_as<T>(stream, dgate_up, dy, gate_up, end); });
}

void add(Stream& stream, const Tensor& y, const Tensor& a, const Tensor& b) {
  require(a.elements() == y.elements() && b.elements() == y.elements(), "add", "shapes differ");
  dispatch_real(y.type, "add", [&]<class T>() { add_as<T>(stream, y, a, b); });
}

}  // namespace tessera
