#pragma once
#include <cstdint>

#include "kernels/base/platform.hpp"

namespace tessera {

/// 128 random bits, or the counter from which they are made: words of ascending significance.
struct PhiloxBlock {
  std::uint32_t word[4];
};

/// The key of one of Philox's rounds.
struct PhiloxKey {
  std::uint32_t low, high;
  TESSERA_FN constexpr explicit PhiloxKey(std::uint64_t key)
      : low(static_cast<std::uint32_t>(key)), high(static_cast<std::uint32_t>(key >> 32)) {}
  TESSERA_FN constexpr void advance() {
    low += 0x9E3779B9u;
    high += 0xBB67AE85u;
  }
};
inline constexpr int philox_rounds = 10;

TESSERA_FN constexpr PhiloxBlock philox_round(const PhiloxBlock& x, PhiloxKey key) {
  const std::uint64_t p = std::uint64_t{0xD2511F53u} * x.word[0], q = std::uint64_t{0xCD9E8D57u} * x.word[2];
  return {{static_cast<std::uint32_t>(q >> 32) ^ x.word[1] ^ key.low, static_cast<std::uint32_t>(q),
           static_cast<std::uint32_t>(p >> 32) ^ x.word[3] ^ key.high, static_cast<std::uint32_t>(p)}};
}

/// Philox4x32-10 of `counter` under `key` (Salmon et al. 2011, Random123).
TESSERA_FN constexpr PhiloxBlock philox(PhiloxBlock counter, std::uint64_t key) {
  PhiloxKey of_round(key);
  for (int round = 0; round < philox_rounds; ++round, of_round.advance()) counter = philox_round(counter, of_round);
  return counter;
}

}  // namespace tessera
