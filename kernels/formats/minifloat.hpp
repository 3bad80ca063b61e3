#pragma once
#include <bit>
#include <cstdint>
#include <limits>

#include "kernels/base/dtype.hpp"

namespace tessera::formats {

/// A float of a few bits: sign, exponent with the IEEE bias, mantissa, subnormals. Encoding rounds to nearest even,
/// saturates at `max_code` (infinities too) and maps every NaN to `nan_code`, without its sign. The sign of zero and of
/// underflow is kept. Source: OCP Microscaling Formats v1.0.
template <int exponent_bits, int mantissa_bits, std::uint32_t max_code, std::uint32_t nan_code>
struct Minifloat {
  using Storage = std::uint8_t;
  static constexpr int bits = 1 + exponent_bits + mantissa_bits;
  static constexpr int bias = (1 << (exponent_bits - 1)) - 1;
  static constexpr std::uint32_t sign = 1u << (bits - 1);

  /// The code of x, in the low bits. Without branches, so that a loop over it is vectorised.
  TESSERA_FN static constexpr std::uint32_t encode(float x) {
    const auto u = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t magnitude = u & 0x7FFFFFFFu;
    const std::uint32_t significand = (magnitude & 0x7FFFFFu) | 0x800000u;
    // Below the least normal the shift grows by one with each exponent; from 25 on all results round to zero.
    const std::int32_t above = static_cast<std::int32_t>(magnitude >> 23) - (128 - bias);
    const std::int32_t wanted = tail - (above < 0 ? above : 0);
    const std::int32_t shift = wanted < 25 ? wanted : 25;
    const std::uint32_t odd = (significand >> shift) & 1u;
    const std::uint32_t rounded = (significand + (0xFFFFFFu >> (25 - shift)) + odd) >> shift;
    return finish(rounded + (static_cast<std::uint32_t>(above < 0 ? 0 : above) << mantissa_bits), u);
  }

  /// encode() for x that is regular() (not NaN, and not below the least normal number), at half the cost.
  TESSERA_FN static constexpr std::uint32_t encode_regular(float x) {
    const auto u = std::bit_cast<std::uint32_t>(x);
    return saturate(static_cast<std::uint32_t>(round_mantissa(u & 0x7FFFFFFFu)), u);
  }
  /// Bits of |x| minus those of the least normal number, modulo 2^32. x is regular if the result is <= last_regular.
  TESSERA_FN static constexpr std::uint32_t beyond_least_normal(float x) {
    return (std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFFu) - least_normal;
  }
  static constexpr std::uint32_t least_normal = static_cast<std::uint32_t>(128 - bias) << 23;
  static constexpr std::uint32_t last_regular = 0x7F800000u - least_normal;
  TESSERA_FN static constexpr bool regular(float x) { return beyond_least_normal(x) <= last_regular; }

  /// The value of a code, exact. Codes above the largest finite one are infinity (mantissa 0) or NaN.
  TESSERA_FN static constexpr float decode(std::uint32_t code) {
    constexpr std::uint32_t mantissa_mask = (1u << mantissa_bits) - 1;
    constexpr float unit = std::bit_cast<float>(static_cast<std::uint32_t>(128 - bias - mantissa_bits) << 23);
    const std::uint32_t magnitude = code & (sign - 1);
    const std::uint32_t mantissa = magnitude & mantissa_mask;
    const std::uint32_t normal = (magnitude << (23 - mantissa_bits)) + (static_cast<std::uint32_t>(127 - bias) << 23);
    const auto subnormal = std::bit_cast<std::uint32_t>(static_cast<float>(static_cast<std::int32_t>(mantissa)) * unit);
    const std::uint32_t finite = magnitude > mantissa_mask ? normal : subnormal;
    const std::uint32_t beyond = mantissa == 0 ? 0x7F800000u : 0x7FC00000u;
    return std::bit_cast<float>((magnitude > max_code ? beyond : finite) | (code & sign) << (32 - bits));
  }

  static constexpr float max = decode(max_code);

 protected:
  static constexpr int tail = 23 - mantissa_bits;  ///< mantissa bits of an fp32 that are rounded away

  /// Code of a magnitude rounded to nearest even, as if there were no subnormals: below the least normal number codes
  /// continue downwards, through zero.
  TESSERA_FN static constexpr std::int32_t round_mantissa(std::uint32_t magnitude) {
    constexpr std::uint32_t rebias = static_cast<std::uint32_t>(127 - bias) << 23, below_half = (1u << (tail - 1)) - 1;
    return static_cast<std::int32_t>(magnitude + (below_half - rebias) + ((magnitude >> tail) & 1u)) >> tail;
  }
  /// Saturates a code and adds the sign of `u`, the bits of x.
  TESSERA_FN static constexpr std::uint32_t saturate(std::uint32_t code, std::uint32_t u) {
    return (code < max_code ? code : max_code) | (u >> 31) << (bits - 1);
  }
  /// saturate(), or nan_code if `u` is NaN.
  TESSERA_FN static constexpr std::uint32_t finish(std::uint32_t code, std::uint32_t u) {
    const std::uint32_t finite = saturate(code, u);
    return (u & 0x7FFFFFFFu) > 0x7F800000u ? nan_code : finite;
  }
};

using E4M3 = Minifloat<4, 3, 0x7E, 0x7F>;  ///< max 448, no infinity
using E5M2 = Minifloat<5, 2, 0x7B, 0x7F>;  ///< max 57344

/// A float of six bits, without infinity and NaN. A byte holds one code, in its low bits.
template <int exponent_bits, int mantissa_bits>
struct SixBits : Minifloat<exponent_bits, mantissa_bits, 0x1F, 0x1F> {
  static constexpr int bits = 8;  ///< as stored
};
using E3M2 = SixBits<3, 2>;  ///< max 28
using E2M3 = SixBits<2, 3>;  ///< max 7.5

/// E2M1: 0, .5, 1, 1.5, 2, 3, 4, 6, with sign; no infinity, no NaN.
struct E2M1 : Minifloat<2, 1, 7, 7> {
  /// Minifloat::encode by one addition. 2^22 times the binade of x (at least that of 1) has a unit in the last place
  /// equal to the spacing of codes in that binade. So adding it to |x| rounds to the nearest code.
  TESSERA_FN static constexpr std::uint32_t encode(float x) {
    constexpr std::uint32_t one = 0x3F800000u;
    constexpr float top = max;
    const auto u = std::bit_cast<std::uint32_t>(x);
    const auto magnitude = std::bit_cast<float>(u & 0x7FFFFFFFu);
    const float a = magnitude < top ? magnitude : top;  // NaN becomes `top`
    const auto bits_of_a = std::bit_cast<std::uint32_t>(a);
    const std::uint32_t binade = (bits_of_a > one ? bits_of_a : one) & 0x7F800000u;
    const std::uint32_t grid = binade + (22u << 23);
    const std::uint32_t steps = std::bit_cast<std::uint32_t>(a + std::bit_cast<float>(grid)) - grid;
    const std::uint32_t code = steps + ((binade - one) >> 22);  // each binade begins two codes above the one before
    return (u & 0x7FFFFFFFu) > 0x7F800000u ? code : code | (u >> 31) << (bits - 1);
  }
};

/// Stochastic rounding to E2M1 with a uniform byte r8: |x| + u * step, u = r8/256, is rounded down to the grid at that
/// sum; step is the spacing of codes at x. At most 6; NaN gives code 7. u * step is exact, so the sum is rounded once,
/// as by a fused multiply-add.
TESSERA_FN constexpr std::uint32_t e2m1_stochastic(float x, std::uint32_t r8) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const auto magnitude = std::bit_cast<float>(bits & 0x7FFFFFFFu);
  const float step = magnitude < 2.0f ? 0.5f / 256.0f : magnitude < 4.0f ? 1.0f / 256.0f : 2.0f / 256.0f;
  const float t = static_cast<float>(static_cast<std::int32_t>(r8)) * step + magnitude;
  const std::uint32_t code =
      (t >= 0.5f) + (t >= 1.0f) + (t >= 1.5f) + (t >= 2.0f) + (t >= 3.0f) + (t >= 4.0f) + (t >= 6.0f);
  return (bits & 0x7FFFFFFFu) > 0x7F800000u ? 7u : code | (bits >> 31) << 3;
}

}  // namespace tessera::formats
