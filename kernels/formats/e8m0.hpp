#pragma once
#include <bit>
#include <cstdint>

#include "kernels/base/platform.hpp"

namespace tessera::formats {

/// E8M0 scales: code c is 2^(c - 127); 255 is NaN. Source: OCP Microscaling Formats v1.0.
struct E8M0 {
  /// Code of the least power of two >= p, for p >= 0: rounds up. NaN -> 255, infinity -> 254, 0 -> 0.
  TESSERA_FN static constexpr std::uint32_t encode(float p) {
    return std::bit_cast<std::uint32_t>(p) > 0x7F800000u ? 255u : encode_number(p);
  }
  /// encode() for p that is not NaN.
  TESSERA_FN static constexpr std::uint32_t encode_number(float p) {
    const auto u = std::bit_cast<std::uint32_t>(p);
    // A normal p rounds up if any mantissa bit is set; a subnormal one if it is above 2^-127, code 0.
    const std::uint32_t code = (u + (u < 0x800000u ? 0x3FFFFFu : 0x7FFFFFu)) >> 23;
    return code < 254u ? code : 254u;
  }
  /// Inverse of the scale, 2^(127 - code), by which values are multiplied before they are encoded.
  TESSERA_FN static constexpr float multiplier(std::uint32_t code) {
    return code == 255 ? std::bit_cast<float>(0x7FC00000u) : multiplier_of_number(code);
  }
  /// multiplier() for codes below 255.
  TESSERA_FN static constexpr float multiplier_of_number(std::uint32_t code) {
    const std::uint32_t bits = (254u - code) << 23;
    return std::bit_cast<float>(bits > 0x00400000u ? bits : 0x00400000u);
  }
  TESSERA_FN static constexpr float decode(std::uint32_t code) {
    return std::bit_cast<float>(code == 0 ? 0x00400000u : code == 255 ? 0x7FC00000u : code << 23);
  }
};

}  // namespace tessera::formats
