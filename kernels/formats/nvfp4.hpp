#pragma once
#include "kernels/formats/format.hpp"
#include "kernels/formats/minifloat.hpp"

namespace tessera::formats {

/// NVFP4: E2M1 elements, an E4M3 scale per block, an fp32 amax per tensor. The bits depend on the order of operations.
template <Block shape>
struct Nvfp4Scaling {
  using Element = E2M1;
  using Scale = std::uint8_t;
  static constexpr Block block = shape;
  static constexpr bool square = shape.rows == shape.columns;
  static constexpr bool scaled = true, ragged = false, tensor_amax = true, hadamard = !square, leaves_alpha = true;
  static constexpr Columnwise columnwise = square ? Columnwise::transposed : Columnwise::requantized;
  static constexpr Order columnwise_order = Order::transposed;
  static constexpr Agreement agreement = square ? Agreement::block_and_tensor_amax : Agreement::nothing;

  TESSERA_FN static constexpr ScaleLayout scale_layout(Side side) {
    if (side == Side::rowwise) return {Order::as_source, {shape.rows, 1}, {128, 4}};
    return {Order::transposed, {1, shape.rows}, {128, 4}};
  }
  TESSERA_FN static constexpr TensorScale tensor_scale(float amax) {
    const bool unit = amax == 0.0f || std::bit_cast<std::uint32_t>(amax) >= 0x7F800000u;
    const float encode = unit ? 1.0f : at_most_largest(2688.0f / amax);
    return {encode, 1.0f / encode};
  }
  TESSERA_FN static constexpr Encoding<Scale> encoding(float amax, TensorScale tensor) {
    const std::uint32_t code = ScaleElement::encode(wanted_scale(amax, tensor));
    return {static_cast<Scale>(code), multiplier(code, tensor)};
  }
  /// Its two steps: what the stored scale is rounded from, and what follows from the stored one.
  using ScaleElement = E4M3;
  TESSERA_FN static constexpr float wanted_scale(float amax, TensorScale tensor) {
    constexpr float sixth = std::bit_cast<float>(0x3E2AAAABu);  // RN(1/6)
    return at_most_largest(amax * (tensor.encode * sixth));
  }
  TESSERA_FN static constexpr float multiplier(std::uint32_t scale, TensorScale tensor) {
    return at_most_largest(1.0f / (ScaleElement::decode(scale) * tensor.inverse));
  }
  /// A block's scale without the tensor's, which becomes a GEMM's alpha.
  TESSERA_FN static constexpr float factor_step(Scale scale, float) { return E4M3::decode(scale); }
  TESSERA_FN static constexpr float tensor_step(float amax) { return amax * (1.0f / 2688.0f); }
  TESSERA_FN static constexpr float step(Scale scale, float amax) {
    return E4M3::decode(scale) * amax * (1.0f / 2688.0f);
  }

 private:
  TESSERA_FN static constexpr float at_most_largest(float x) {
    constexpr float largest = std::bit_cast<float>(0x7F7FFFFFu);
    return x < largest ? x : largest;
  }
};

struct Nvfp4 : Nvfp4Scaling<Block{16, 16}> {
  static constexpr std::string_view name = "nvfp4";
};
struct Nvfp4OneD : Nvfp4Scaling<Block{1, 16}> {
  static constexpr std::string_view name = "nvfp4_1d";
};

}  // namespace tessera::formats
