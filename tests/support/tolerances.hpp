#pragma once

/// Tolerances of comparisons, with their reasons: the only table. For kernels against their references see compare.hpp.
namespace tessera::test::tolerances {

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
inline constexpr double fp4_layer = 4e-1;  // 3.0e-1

}  // namespace tessera::test::tolerances
