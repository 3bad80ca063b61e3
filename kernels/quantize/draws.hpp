#pragma once
#include "kernels/quantize/source.hpp"
#include "kernels/random/philox.hpp"

/// Uniform bytes for stochastic rounding: byte i mod 16 of Philox block i / 16, i the element's canonical index.
namespace tessera::quantizer {

TESSERA_FN inline PhiloxBlock draw_block(const RandomKey& key, std::uint64_t block) {
  return philox({{static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                  static_cast<std::uint32_t>(key.stream), static_cast<std::uint32_t>(key.stream >> 32)}},
                key.seed);
}
TESSERA_FN inline std::uint32_t byte_of(const PhiloxBlock& block, std::uint64_t i) {
  return block.word[i % 16 / 4] >> (8 * (i % 4)) & 0xFFu;
}

}  // namespace tessera::quantizer
