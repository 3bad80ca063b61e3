#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tessera {

/// CRC-32 of bytes by a polynomial in reversed order of bits: 0xEDB88320 is zlib's, 0x82F63B78 Castagnoli's. Local.
template <std::uint32_t polynomial>
std::uint32_t crc32_by(std::span<const std::byte> bytes) {
  static constexpr auto table = [] {
    std::array<std::uint32_t, 256> made{};
    for (std::uint32_t i = 0; i < made.size(); ++i) {
      made[i] = i;
      for (int bit = 0; bit < 8; ++bit) made[i] = made[i] >> 1 ^ (made[i] & 1 ? polynomial : 0u);
    }
    return made;
  }();
  std::uint32_t crc = 0xFFFFFFFFu;
  for (const std::byte byte : bytes) crc = crc >> 8 ^ table[(crc ^ static_cast<std::uint32_t>(byte)) & 0xFF];
  return ~crc;
}

}  // namespace tessera
