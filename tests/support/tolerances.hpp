#pragma once

/// How far two answers may lie apart, and why: the one table. Kernels against their references: compare.hpp.
namespace tessera::test::tolerances {

// Hand-written gradients against finite differences in fp64, relative to ||gradient|| times the step's typical element.
// Five-point differences of step 1e-4 are good to 1e-11 of the function; the floor stands for that.
inline constexpr double finite_difference = 1e-7;
inline constexpr double finite_difference_floor = 1e-10;

// fp32 against an independent framework in fp64: losses relative, gradients ||a-b|| <= g max(||b||, floor global norm).
inline constexpr double fp32_loss = 1e-5;
inline constexpr double fp32_gradient = 1e-5;
inline constexpr double gradient_floor = 1e-3;
// Logits are no mean over anything: relative to their norm.
inline constexpr double fp32_logits = 1e-5;

// bf16 against the same, whose unit roundoff is 2^-9 = 2e-3; next to each what was measured on the four goldens.
inline constexpr double bf16_loss = 2e-3;      // 1.3e-3
inline constexpr double bf16_logits = 2e-2;    // 1.0e-2
inline constexpr double bf16_gradient = 3e-2;  // 1.7e-2
inline constexpr double bf16_training = 6e-3;  // ten losses: 4.1e-3
// Where two experts are nearly as probable, rounding the router's input decides, and an expert gains or loses a token.
inline constexpr double bf16_gradient_moe = 3.5e-1;  // 2.2e-1
inline constexpr double bf16_auxiliary = 3e-3;       // 1.4e-3

// One sum made in another order (fp32): the head in pieces against the head at once.
inline constexpr double reordered = 1e-6;

// Newton-Schulz steps in bf16, ||a-b|| over ||b||: another order of a sum may round to another bf16.
inline constexpr double newton_schulz = 2e-2;

// A code against its value: half a step of E4M3 for each of two roundings at most, of values that no scale makes
// subnormal.
inline constexpr double e4m3_code = 7e-2;
inline constexpr double e4m3_least = 2e-2;
// A feed-forward layer's results in low precision, ||a-b|| over ||b||, b those of bf16.
inline constexpr double fp8_layer = 8e-2;  // 6.0e-2
inline constexpr double fp4_layer = 4e-1;  // 3.0e-1

}  // namespace tessera::test::tolerances
