#pragma once
// Elementary functions by + - * / sqrt and fma only, so that host and device give the same bits; libm's and CUDA's
// differ.
#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/random/philox.hpp"

namespace tessera {

/// ln(x) of a positive normal x, within 1 ulp. With x = 2^k (1 + f) and s = f / (2 + f):
/// ln(1 + f) = f - s (f - sum_j 2/(2j+1) s^2j), f kept apart from the small terms (fdlibm's arrangement).
TESSERA_FN inline double natural_log(double x) {
  constexpr std::int64_t sqrt_half = 0x3FE6A09E667F3BCD;
  constexpr double ln2_high = 0x1.62e42feep-1, ln2_low = 0x1.a39ef35793c76p-33;
  const auto bits = std::bit_cast<std::int64_t>(x);
  const std::int64_t exponent = (bits - sqrt_half) >> 52;
  const double f = std::bit_cast<double>(bits - exponent * (std::int64_t{1} << 52)) - 1.0;
  const auto k = static_cast<double>(static_cast<std::int32_t>(exponent));
  const double s = f / (2.0 + f), z = s * s, half_square = 0.5 * f * f;
  double r = 2.0 / 23;
  r = ::fma(r, z, 2.0 / 21);
  r = ::fma(r, z, 2.0 / 19);
  r = ::fma(r, z, 2.0 / 17);
  r = ::fma(r, z, 2.0 / 15);
  r = ::fma(r, z, 2.0 / 13);
  r = ::fma(r, z, 2.0 / 11);
  r = ::fma(r, z, 2.0 / 9);
  r = ::fma(r, z, 2.0 / 7);
  r = ::fma(r, z, 2.0 / 5);
  r = ::fma(r, z, 2.0 / 3) * z;
  return k * ln2_high - ((half_square - ::fma(s, half_square + r, k * ln2_low)) - f);
}

/// sin(t), cos(t) for |t| <= pi/4, within 1 ulp: their Taylor series.
TESSERA_FN inline double sine_near_zero(double t) {
  const double z = t * t;
  double r = 1.0 / 355687428096000;
  r = ::fma(r, z, -1.0 / 1307674368000);
  r = ::fma(r, z, 1.0 / 6227020800);
  r = ::fma(r, z, -1.0 / 39916800);
  r = ::fma(r, z, 1.0 / 362880);
  r = ::fma(r, z, -1.0 / 5040);
  r = ::fma(r, z, 1.0 / 120);
  r = ::fma(r, z, -1.0 / 6);
  return ::fma(t * z, r, t);
}
TESSERA_FN inline double cosine_near_zero(double t) {
  const double z = t * t;
  double r = 1.0 / 20922789888000;
  r = ::fma(r, z, -1.0 / 87178291200);
  r = ::fma(r, z, 1.0 / 479001600);
  r = ::fma(r, z, -1.0 / 3628800);
  r = ::fma(r, z, 1.0 / 40320);
  r = ::fma(r, z, -1.0 / 720);
  r = ::fma(r, z, 1.0 / 24);
  const double half = 0.5 * z, w = 1.0 - half;  // (1 - w) - half is the rounding error of w
  return w + ::fma(z * z, r, (1.0 - w) - half);
}

/// cos(2 pi u) for u in [0, 1]. The quadrant is split off exactly, before the multiplication by pi.
TESSERA_FN inline double cosine_of_turns(double u) {
  constexpr double two_pi = 6.283185307179586;
  const auto quadrant = static_cast<std::int32_t>(::fma(4.0, u, 0.5));
  const double t = two_pi * (u - 0.25 * quadrant);
  const double c = cosine_near_zero(t), s = sine_near_zero(t);
  const double size = (quadrant & 1) != 0 ? s : c;
  return ((quadrant + 1) & 2) != 0 ? -size : size;
}

/// A N(0,1) number from 128 random bits by Box-Muller: sqrt(-2 ln u) cos(2 pi v), u in (0, 1], v in [0, 1).
TESSERA_FN inline double normal_from(PhiloxBlock random) {
  const std::uint64_t low = (std::uint64_t{random.word[1]} << 32) | random.word[0];
  const std::uint64_t high = (std::uint64_t{random.word[3]} << 32) | random.word[2];
  const double u = (static_cast<double>(static_cast<std::int64_t>(low >> 11)) + 1.0) * 0x1p-53;
  const double v = static_cast<double>(static_cast<std::int64_t>(high >> 11)) * 0x1p-53;
  return ::sqrt(-2.0 * natural_log(u)) * cosine_of_turns(v);
}

}  // namespace tessera
