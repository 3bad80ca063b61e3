#pragma once
#include <cstdint>

#include "kernels/base/platform.hpp"

namespace tessera::quantizer::measure {

/// value 2^bit units of ExactSum as digits: calls add(limb, digit).
template <class Add>
TESSERA_FN inline void each_digit(std::uint64_t value, int bit, const Add& add) {
  const int limb = bit / 32, shift = bit % 32;
  const std::uint64_t low = (value & 0xFFFFFFFFu) << shift, high = ((value >> 32) << shift) + (low >> 32);
  if ((low & 0xFFFFFFFFu) != 0) add(limb, low & 0xFFFFFFFFu);
  if ((high & 0xFFFFFFFFu) != 0) add(limb + 1, high & 0xFFFFFFFFu);
  if (high >> 32 != 0) add(limb + 2, high >> 32);
}

/// Exact sum of squares of numbers whose exponents lie in a window: 128 bits, which a thread holds in registers.
class SquareWindow {
 public:
  static constexpr int exponents = 32;
  static constexpr int most = 512;  ///< squares that a sum may have

  /// Adds the square of a 24-bit significand whose exponent lies `above` the least of the window, below `exponents`.
  TESSERA_FN void add(std::uint64_t square, int above) {
    const int shift = 2 * above;  // at most 62
    const std::uint64_t low = square << shift;
    low_ += low;
    high_ += (square >> 1 >> (63 - shift)) + (low_ < low ? 1 : 0);
  }
  static constexpr int parts = 8;
  /// Bits [16 i, 16 i + 16) of the sum, in units of the square of the least exponent.
  TESSERA_FN std::uint32_t part(int i) const {
    return static_cast<std::uint32_t>((i < 4 ? low_ : high_) >> 16 * (i % 4)) & 0xFFFFu;
  }

 private:
  std::uint64_t low_ = 0, high_ = 0;
};

}  // namespace tessera::quantizer::measure
