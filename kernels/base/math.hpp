#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/base/platform.hpp"

/// Elementary functions by + - * / only, so that host and GPU give the same bits and a compiler vectorises a loop over
/// them. They have no branch, no table, no library call. Polynomials from the Cephes library (Moshier). The double
/// overloads are the platform's own.
namespace tessera {

/// e^x within 1 ulp (1.5 in the denormal range); 0 and infinity outside the range of fp32; NaN stays NaN.
TESSERA_FN inline float exp_of(float x) {
  const float low = x < -104.0f ? -104.0f : x;  // a NaN fails both comparisons and passes
  const float c = low > 89.0f ? 89.0f : low;
  // Adding 1.5 * 2^23 rounds to an integer, which is then in the low bits.
  const float shifted = c * 1.44269504088896341f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  const float r = (c - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float y = p * (r * r) + r + 1.0f;
  // 2^n as two factors, both of whose exponents are in range even if n is not.
  const auto k = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(shifted) - 0x4B400000u);
  const std::int32_t half = k >> 1;
  const auto first = std::bit_cast<float>(static_cast<std::uint32_t>(half + 127) << 23);
  const auto second = std::bit_cast<float>(static_cast<std::uint32_t>(k - half + 127) << 23);
  return y * first * second;
}

/// Natural logarithm within 1 ulp, denormals included; -infinity at 0, NaN below.
TESSERA_FN inline float log_of(float x) {
  const bool tiny = x < 1.17549435e-38f;
  const auto bits = std::bit_cast<std::uint32_t>(tiny ? x * 8388608.0f : x);
  // x = m 2^e with m in [sqrt(1/2), sqrt(2)): the offset carries into the exponent from sqrt(1/2) on.
  const std::uint32_t moved = bits - 0x3F3504F3u;
  const auto e = static_cast<float>((static_cast<std::int32_t>(moved) >> 23) - (tiny ? 23 : 0));
  const float m = std::bit_cast<float>((moved & 0x007FFFFFu) + 0x3F3504F3u) - 1.0f;
  float p = 7.0376836292e-2f;
  p = p * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  const float z = m * m;
  const float y = (p * m * z - e * 2.12194440e-4f) - 0.5f * z;
  const float finite = (m + y) + e * 0.693359375f;
  const float infinity = std::bit_cast<float>(0x7F800000u), nan = std::bit_cast<float>(0x7FC00000u);
  const float positive = x < infinity ? finite : x;  // infinity and NaN are their own logarithms
  const float at_least_zero = x == 0.0f ? -infinity : positive;
  return x < 0.0f ? nan : at_least_zero;
}

TESSERA_FN inline double exp_of(double x) { return ::exp(x); }
TESSERA_FN inline double log_of(double x) { return ::log(x); }

/// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), as x / (1 + e^-2u), which keeps its digits in the negative tail.
/// T is float or double. The one definition: GEMM epilogues and the activation kernels give the same bits.
template <class T> TESSERA_FN inline T gelu_of(T x) {
  const T minus_2u = T(-1.5957691216057308) * (x + T(0.044715) * x * x * x);
  return x / (T(1) + exp_of(minus_2u));
}

}  // namespace tessera
