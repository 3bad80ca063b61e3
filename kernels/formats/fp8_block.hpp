#pragma once
#include "kernels/formats/format.hpp"
#include "kernels/formats/minifloat.hpp"

namespace tessera::formats {

/// The multipliers that an FP8 block may have. With powers of two an operand decodes to bf16 exactly.
enum class Multipliers : std::uint8_t { powers_of_two, any };

/// The power of two fp32(max / amax) with its mantissa truncated; at most 2^127. Computed from exponents without a
/// division, which is exact because a quotient of significands below 1 never rounds up to 1.
TESSERA_FN constexpr float power_of_quotient(float max, std::uint32_t amax) {
  const auto top = std::bit_cast<std::uint32_t>(max);
  constexpr std::uint32_t mantissa = 0x7FFFFFu, largest = 254;
  // amax's exponent, and one more where its significand is above that of max.
  const std::uint32_t beyond = (amax + (mantissa - (top & mantissa))) >> 23;
  const std::uint32_t exponent = (top >> 23) + 127 - beyond;
  return std::bit_cast<float>((exponent < largest ? exponent : largest) << 23);
}
/// 1 / power, for such a power of two.
TESSERA_FN constexpr float inverse_of_power(float power) {
  const std::uint32_t inverse = 0x7F000000u - std::bit_cast<std::uint32_t>(power);
  return std::bit_cast<float>(inverse == 0 ? 0x00400000u : inverse);  // 2^-127 is subnormal
}

/// power_of_quotient() for an amax that is not NaN; 1 if that is 0 or infinite.
TESSERA_FN constexpr float power_multiplier(float max, float amax) {
  const auto bits = std::bit_cast<std::uint32_t>(amax);
  return bits == 0 || bits >= 0x7F800000u ? 1.0f : power_of_quotient(max, bits);
}

/// Multiplier of a block with largest magnitude max(amax, eps); 1 if that is 0 or not finite.
template <class Element, Multipliers multipliers>
TESSERA_FN constexpr float fp8_multiplier(float amax, float eps = 0.0f) {
  const float a = amax < eps ? eps : amax;
  const auto bits = std::bit_cast<std::uint32_t>(a);
  if (bits == 0 || bits >= 0x7F800000u) return 1.0f;
  if constexpr (multipliers == Multipliers::powers_of_two) return power_of_quotient(Element::max, bits);
  const float quotient = Element::max / a;
  const auto q = std::bit_cast<std::uint32_t>(quotient);
  return std::bit_cast<float>(q < 0x7F7FFFFFu ? q : 0x7F7FFFFFu);
}

/// FP8 with one fp32 scale per block: 128 x 128 for weights, 1 x 128 for activations and gradients. Stored scales are
/// the reciprocals of the multipliers.
template <class ElementCodec, Block shape, Multipliers multipliers>
struct Fp8 {
  using Element = ElementCodec;
  using Scale = float;
  static constexpr Block block = shape;
  static constexpr bool square = shape.rows == shape.columns;
  static constexpr bool scaled = true, ragged = true, tensor_amax = false, hadamard = false, leaves_alpha = false;
  static constexpr Columnwise columnwise = square ? Columnwise::transposed : Columnwise::requantized;
  static constexpr Order columnwise_order = Order::transposed;
  static constexpr Agreement agreement = square ? Agreement::block_amax : Agreement::nothing;

  TESSERA_FN static constexpr ScaleLayout scale_layout(Side side) {
    const bool turned = square == (side == Side::columnwise);
    return {turned ? Order::transposed : Order::as_source, {1, 1}, {1, 4}};
  }
  TESSERA_FN static constexpr TensorScale tensor_scale(float) { return {}; }
  TESSERA_FN static constexpr Encoding<Scale> encoding(float amax, TensorScale) {
    const float multiplier = fp8_multiplier<Element, multipliers>(amax);
    if constexpr (multipliers == Multipliers::powers_of_two) return {inverse_of_power(multiplier), multiplier};
    return {1.0f / multiplier, multiplier};
  }
  TESSERA_FN static constexpr float tensor_step(float) { return 1.0f; }
  TESSERA_FN static constexpr float factor_step(Scale scale, float) { return scale; }
  TESSERA_FN static constexpr float step(Scale scale, float) { return scale; }
};

struct Fp8Block : Fp8<E4M3, Block{128, 128}, Multipliers::powers_of_two> {
  static constexpr std::string_view name = "fp8_block";
};
struct Fp8BlockOneD : Fp8<E4M3, Block{1, 128}, Multipliers::powers_of_two> {
  static constexpr std::string_view name = "fp8_block_1d";
};

}  // namespace tessera::formats
