#pragma once
#include <bit>
#include <cstdint>

#include "kernels/base/platform.hpp"

namespace tessera::formats {

/// A power of two, 2^(code - 127); 255 is NaN. Source: OCP Microscaling Formats v1.0.
struct E8M0 {
  /// The least power that is not below p >= 0. NaN -> 255, infinity -> 254, 0 -> 0.
  TESSERA_FN static constexpr std::uint32_t encode(float p) {
    const auto u = std::bit_cast<std::uint32_t>(p);
    const std::uint32_t exponent = u >> 23, mantissa = u & 0x7FFFFFu;
    const std::uint32_t up = (mantissa > 0) & (exponent != 254) & !((exponent == 0) & (mantissa <= 0x400000u));
    const std::uint32_t code = exponent + up;
    return (code < 255u ? code : 255u) - (u == 0x7F800000u);
  }
  /// 2^(127 - code): what values are multiplied by before they are encoded.
  TESSERA_FN static constexpr float multiplier(std::uint32_t code) {
    const std::uint32_t bits = code == 255 ? 0x7FC00000u : code == 254 ? 0x00400000u : (254u - code) << 23;
    return std::bit_cast<float>(bits);
  }
  TESSERA_FN static constexpr float decode(std::uint32_t code) {
    return std::bit_cast<float>(code == 0 ? 0x00400000u : code == 255 ? 0x7FC00000u : code << 23);
  }
};

}  // namespace tessera::formats
