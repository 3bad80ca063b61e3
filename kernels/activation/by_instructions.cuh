#pragma once
// Activations by the GPU's own exponential and reciprocal, right to 22 of fp32's 24 bits, which suffices for bf16. NaN
// stays NaN. For CUDA sources only.

namespace tessera::activation {

/// 1 / (1 + 2^power).
__device__ inline float inverse_of_one_and(float power) {
  float raised, inverse;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(raised) : "f"(power));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1.0f + raised));
  return inverse;
}
__device__ inline float fast_sigmoid(float x) { return inverse_of_one_and(x * -1.44269504f); }

/// s = sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3): gelu(x) = x s. `square` is x^2.
__device__ inline float gelu_gate(float x, float square) {
  return inverse_of_one_and(x * __fmaf_rn(square, -0.1029432397f, -2.302208198f));
}
__device__ inline float fast_gelu(float x) { return x * gelu_gate(x, x * x); }
/// s + x s (1 - s) 2u'. The bound on the square keeps a large x from 0 times infinity.
__device__ inline float fast_gelu_slope(float x) {
  const float square = fminf(x * x, 1e30f), s = gelu_gate(x, square);
  return __fmaf_rn(x * __fmaf_rn(-s, s, s), __fmaf_rn(square, 0.2140644488f, 1.5957691216f), s);
}

}  // namespace tessera::activation
