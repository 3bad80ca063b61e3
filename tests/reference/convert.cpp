#include "tests/reference/convert.hpp"

#include <bit>
#include <cmath>

namespace tessera::reference {
namespace {
double value_of(std::uint32_t magnitude) {
  // The number behind the largest finite bf16 counts as 2^128: from half way to it on, rounding gives infinity.
  if (magnitude == 0x7F80) return std::ldexp(1.0, 128);
  return static_cast<double>(std::bit_cast<float>(magnitude << 16));
}
}  // namespace

bf16 nearest_bf16(float x) {
  bf16 result;
  if (std::isnan(x)) {
    result.bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16 | 0x40);
    return result;
  }
  const double wanted = std::abs(static_cast<double>(x));
  std::uint32_t below = 0, above = 0x7F80;  // the largest magnitude not above x, the smallest above it
  if (std::isinf(x)) below = 0x7F80;
  while (!std::isinf(x) && above - below > 1) {
    const std::uint32_t middle = (below + above) / 2;
    (value_of(middle) <= wanted ? below : above) = middle;
  }
  const double under = wanted - value_of(below), over = value_of(above) - wanted;
  const bool up = !std::isinf(x) && (over < under || (over == under && (below & 1) != 0));
  result.bits = static_cast<std::uint16_t>((up ? above : below) | (std::signbit(x) ? 0x8000u : 0u));
  return result;
}

}  // namespace tessera::reference
