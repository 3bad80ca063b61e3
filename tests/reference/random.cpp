#include "tests/reference/random.hpp"

#include <cmath>
#include <numbers>

namespace tessera::reference {

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    if (round > 0) key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
    const std::uint64_t product0 = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57} * counter[2];
    const auto high0 = static_cast<std::uint32_t>(product0 >> 32), low0 = static_cast<std::uint32_t>(product0);
    const auto high1 = static_cast<std::uint32_t>(product1 >> 32), low1 = static_cast<std::uint32_t>(product1);
    counter = {high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0};
  }
  return counter;
}

long double normal(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  const auto low = [](std::uint64_t x) { return static_cast<std::uint32_t>(x); };
  const auto high = [](std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); };
  const auto random = philox({low(index), high(index), low(stream), high(stream)}, {low(seed), high(seed)});
  const auto uniform = [&](std::size_t word, long double offset) {
    const std::uint64_t bits = (std::uint64_t{random[word + 1]} << 32 | random[word]) >> 11;
    return (static_cast<long double>(bits) + offset) / 9007199254740992.0L;
  };
  return std::sqrt(-2 * std::log(uniform(0, 1))) * std::cos(2 * std::numbers::pi_v<long double> * uniform(2, 0));
}

}  // namespace tessera::reference
