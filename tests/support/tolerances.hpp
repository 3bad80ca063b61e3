#pragma once
#include <type_traits>

#include "kernels/base/dtype.hpp"

// Tolerances of comparisons, with their reasons: the only table.

namespace tessera::test {

/// Tolerance of a sum of moderate length in T, compared with a reference in double: a few roundings of T.
template <class T> inline constexpr double tolerance = 1e-12;
template <> inline constexpr double tolerance<float> = 2e-5;
template <> inline constexpr double tolerance<bf16> = 1e-2;

/// Tolerance of sums of products against the same sums in double, relative to the norm of the whole.
template <class T>
inline constexpr double sum_tolerance = 1e-5;
template <>
inline constexpr double sum_tolerance<double> = 1e-12;

/// Attention: in bf16 softmax's weights are rounded before they multiply the values, half an ulp each, besides the
/// result's own rounding.
template <class T>
inline constexpr double attention_tolerance = std::is_same_v<T, bf16> ? 6e-3 : sum_tolerance<T>;

namespace tolerances {

// Hand-written gradients against finite differences in fp64, relative to ||gradient|| times the step's typical element.
// Five-point differences of step 1e-4 are good to 1e-11 of the function; the floor stands for that.
inline constexpr double finite_difference = 1e-7;
inline constexpr double finite_difference_floor = 1e-10;

// fp32 against an independent framework in fp64: losses relative, gradients ||a-b|| <= g max(||b||, floor global norm).
inline constexpr double fp32_loss = 1e-5;
inline constexpr double fp32_gradient = 1e-5;
inline constexpr double gradient_floor = 1e-3;
// Logits, relative to their norm.
inline constexpr double fp32_logits = 1e-5;

// bf16 (unit roundoff 2^-9 = 2e-3) against the same framework; in comments the values measured on the four goldens.
inline constexpr double bf16_loss = 2e-3;      // 1.3e-3
inline constexpr double bf16_logits = 2e-2;    // 1.0e-2
inline constexpr double bf16_gradient = 3e-2;  // 1.7e-2
inline constexpr double bf16_training = 6e-3;  // ten losses: 4.1e-3
// If two experts are almost equally probable, rounding of the router's input decides which one gets a token.
inline constexpr double bf16_gradient_moe = 3.5e-1;  // 2.2e-1
inline constexpr double bf16_auxiliary = 3e-3;       // 1.4e-3

// Losses and norms of fp32 runs that add in another order.
inline constexpr double fp32_order = 1e-5;

// The loss of a model that has learned nothing, against ln(vocabulary): its logits are small, not 0.
inline constexpr double untrained_loss = 3e-1;

// A sum in another order (fp32): the head in pieces against the head at once.
inline constexpr double reordered = 1e-6;

// Newton-Schulz steps in bf16, ||a-b|| / ||b||: a sum in another order may round to another bf16.
inline constexpr double newton_schulz = 2e-2;

// A code against its value: half a step of E4M3 for each of two roundings at most, of values that no scale makes
// subnormal.
inline constexpr double e4m3_code = 7e-2;
inline constexpr double e4m3_least = 2e-2;
// A feed-forward layer's results in low precision, ||a-b|| over ||b||, b those of bf16.
inline constexpr double fp8_layer = 8e-2;  // 6.0e-2
inline constexpr double e5m2_layer = 1.2e-1;  // 8.8e-2
inline constexpr double e3m2_layer = 1.5e-1;  // 1.1e-1 by the numpy formats
inline constexpr double fp4_layer = 4e-1;  // 3.0e-1

}  // namespace tolerances

}  // namespace tessera::test
