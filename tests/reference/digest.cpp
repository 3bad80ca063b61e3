#include "tests/reference/digest.hpp"

namespace tessera::reference {

std::uint64_t digest(std::span<const std::uint64_t> bits, std::uint64_t first) {
  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; i < bits.size(); ++i) {
    std::uint64_t z = bits[i] ^ (first + i + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    sum += z ^ z >> 31;
  }
  return sum;
}

}  // namespace tessera::reference
