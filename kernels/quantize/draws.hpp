#pragma once
#include "kernels/digest/digest.hpp"
#include "kernels/quantize/source.hpp"
#include "kernels/random/philox.hpp"
#include "kernels/random/random.hpp"

/// Random bytes for stochastic rounding, uniform and independent of the number of ranks: element i (canonical index)
/// has byte i mod 16 of Philox block i / 16.
namespace tessera::quantizer {

/// The key of the random numbers of one weight, side and step.
TESSERA_FN constexpr RandomKey draw_key(std::uint64_t seed, std::uint64_t name, std::uint64_t step) {
  return {seed, mix64(name + step)};
}
TESSERA_FN inline RandomKey draw_key(const Descriptor& d, Side side) {
  return draw_key(d.seed, d.draws[static_cast<int>(side)], *d.step);
}

TESSERA_FN inline PhiloxBlock draw_counter(const RandomKey& key, std::uint64_t block) {
  return {{static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
           static_cast<std::uint32_t>(key.stream), static_cast<std::uint32_t>(key.stream >> 32)}};
}
TESSERA_FN inline PhiloxBlock draw_block(const RandomKey& key, std::uint64_t block) {
  return philox(draw_counter(key, block), key.seed);
}
TESSERA_FN inline std::uint32_t byte_of(const PhiloxBlock& block, std::uint64_t i) {
  return block.word[i % 16 / 4] >> (8 * (i % 4)) & 0xFFu;
}

}  // namespace tessera::quantizer
