#pragma once
#include <cstdint>

#include "kernels/base/platform.hpp"

namespace tessera {

/// 128 random bits, or the counter from which they are made: words of ascending significance.
struct PhiloxBlock {
  std::uint32_t word[4];
};

/// Philox4x32-10 of `counter` under `key` (Salmon et al. 2011, Random123).
TESSERA_FN constexpr PhiloxBlock philox(PhiloxBlock counter, std::uint64_t key) {
  std::uint32_t a = counter.word[0], b = counter.word[1], c = counter.word[2], d = counter.word[3];
  auto low_key = static_cast<std::uint32_t>(key), high_key = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p = std::uint64_t{0xD2511F53u} * a, q = std::uint64_t{0xCD9E8D57u} * c;
    a = static_cast<std::uint32_t>(q >> 32) ^ b ^ low_key;
    b = static_cast<std::uint32_t>(q);
    c = static_cast<std::uint32_t>(p >> 32) ^ d ^ high_key;
    d = static_cast<std::uint32_t>(p);
    low_key += 0x9E3779B9u;
    high_key += 0xBB67AE85u;
  }
  return {{a, b, c, d}};
}

}  // namespace tessera
