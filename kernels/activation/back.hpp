#pragma once
#include "kernels/activation/activation.hpp"
#include "kernels/base/math.hpp"

/// Formulas that the back ends share, and a back end's faster versions of the portable kernels in activation.cpp. They
/// have the same arguments, already checked, and same bits, except for gelu and swiglu in bf16. Each returns false,
/// with nothing done, if it has no faster version.
namespace tessera::activation {

inline const std::int32_t* end_of(const Tensor& end) { return end ? end.as<std::int32_t>() : nullptr; }
/// Whether a row is left as it is.
// mutation: one_row_behind_the_end
TESSERA_FN inline bool behind(const std::int32_t* end, std::int64_t row) { return end != nullptr && row >= *end; }

template <class A>
TESSERA_FN inline A sigmoid(A x) {
  return A(1) / (A(1) + exp_of(-x));
}

// gelu(x) = x s with s = sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3): its derivative is s + x s (1 - s) 2u'. Beyond
// `flat` s (1 - s) is 0 in every type, and x in u' is bounded, since the square of a large x would be infinite.
template <class A>
TESSERA_FN inline A gelu_slope(A x) {
  constexpr A two_root = A(1.5957691216057308), cubic = A(0.044715), flat = A(64);
  const A s = sigmoid(two_root * (x + cubic * x * x * x));
  const A bounded = x > flat ? flat : x < -flat ? -flat : x;
  return s + x * s * (A(1) - s) * two_root * (A(1) + A(3) * cubic * bounded * bounded);
}

/// With s = sigmoid(gate).
template <class A>
TESSERA_FN inline A swiglu(A s, A gate, A up) {
  return gate * s * up;
}
/// Gradients of gate and up, of y's `d`, with s as above.
template <class A>
TESSERA_FN inline void swiglu_slopes(A s, A gate, A up, A d, A& dgate, A& dup) {
  dgate = d * up * (s * (A(1) + gate * (A(1) - s)));
  dup = d * (gate * s);
}

bool gelu_forward(Stream& stream, const Tensor& y, const Tensor& pre, const Tensor& end);
bool gelu_backward(Stream& stream, const Tensor& dpre, const Tensor& dy, const Tensor& pre, const Tensor& end);
bool swiglu_forward(Stream& stream, const Tensor& y, const Tensor& gate_up, const Tensor& end);
bool swiglu_backward(Stream& stream, const Tensor& dgate_up, const Tensor& dy, const Tensor& gate_up,
                     const Tensor& end);

}  // namespace tessera::activation
