#pragma once
#include "kernels/formats/fp8_block.hpp"

namespace tessera::formats {

/// FP8 with one scale a matrix, that of its amax. The multiplier is a power of two, so that decoded values are exact in
/// bf16 and an alpha of a product is exact too. Codes and the amax are stored, no scales; the columnwise copy is the
/// transpose. Blocks are units of work alone.
template <class ElementCodec>
struct Fp8TensorScaling {
  using Element = ElementCodec;
  using Scale = std::uint8_t;  // none is stored
  static constexpr Block block{128, 128};
  static constexpr bool scaled = false, ragged = true, tensor_amax = true, hadamard = false, leaves_alpha = false;
  static constexpr Columnwise columnwise = Columnwise::transposed;
  static constexpr Order columnwise_order = Order::transposed;
  static constexpr Agreement agreement = Agreement::tensor_amax;

  TESSERA_FN static constexpr ScaleLayout scale_layout(Side) { return {}; }
  TESSERA_FN static constexpr TensorScale tensor_scale(float amax) {
    const float multiplier = fp8_multiplier<Element, Multipliers::powers_of_two>(amax);
    return {multiplier, inverse_of_power(multiplier)};
  }
  TESSERA_FN static constexpr Encoding<Scale> encoding(float, TensorScale tensor) { return {0, tensor.encode}; }
  TESSERA_FN static constexpr float tensor_step(float amax) { return tensor_scale(amax).inverse; }
  TESSERA_FN static constexpr float factor_step(Scale, float amax) { return tensor_step(amax); }
  TESSERA_FN static constexpr float step(Scale, float amax) { return tensor_step(amax); }
};

struct Fp8Tensor : Fp8TensorScaling<E4M3> {
  static constexpr std::string_view name = "fp8_tensor";
};
/// For gradients, whose range is wider.
struct Fp8TensorE5m2 : Fp8TensorScaling<E5M2> {
  static constexpr std::string_view name = "fp8_tensor_e5m2";
};

}  // namespace tessera::formats
