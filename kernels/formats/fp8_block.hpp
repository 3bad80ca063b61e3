#pragma once
#include "kernels/formats/format.hpp"
#include "kernels/formats/minifloat.hpp"

namespace tessera::formats {

/// Which multipliers an FP8 block may have. Powers of two lose no bit when an operand is decoded to bf16.
enum class Multipliers : std::uint8_t { powers_of_two, any };

/// What a block of largest magnitude `amax`, raised to `eps` if below it, is multiplied by.
template <class Element, Multipliers multipliers>
TESSERA_FN constexpr float fp8_multiplier(float amax, float eps = 0.0f) {
  const float a = amax < eps ? eps : amax;
  const auto bits = std::bit_cast<std::uint32_t>(a);
  if (bits == 0 || bits >= 0x7F800000u) return 1.0f;
  const float quotient = Element::max / a;
  const auto q = std::bit_cast<std::uint32_t>(quotient);
  const std::uint32_t finite = q < 0x7F7FFFFFu ? q : 0x7F7FFFFFu;
  return std::bit_cast<float>(multipliers == Multipliers::powers_of_two ? finite & 0x7F800000u : finite);
}

/// FP8 with one fp32 scale per block: 128 x 128 for weights, 1 x 128 for activations and gradients. Stored scales are
/// the reciprocals of the multipliers.
template <class ElementCodec, Block shape, Multipliers multipliers>
struct Fp8 {
  using Element = ElementCodec;
  using Scale = float;
  static constexpr Block block = shape;
  static constexpr bool square = shape.rows == shape.columns;
  static constexpr bool scaled = true, ragged = true, tensor_amax = false, hadamard = false;
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
    return {1.0f / multiplier, multiplier};
  }
  TESSERA_FN static constexpr float block_step(Scale scale) { return scale; }
  TESSERA_FN static constexpr float step(Scale scale, float) { return scale; }
};

struct Fp8Block : Fp8<E4M3, Block{128, 128}, Multipliers::powers_of_two> {
  static constexpr std::string_view name = "fp8_block";
};
struct Fp8BlockOneD : Fp8<E4M3, Block{1, 128}, Multipliers::powers_of_two> {
  static constexpr std::string_view name = "fp8_block_1d";
};

}  // namespace tessera::formats
