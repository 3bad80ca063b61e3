#pragma once
#include "kernels/formats/e8m0.hpp"
#include "kernels/formats/format.hpp"
#include "kernels/formats/minifloat.hpp"

namespace tessera::formats {

/// Scaling of E4M3 elements by E8M0 scales, shared by both block shapes of MXFP8.
struct MxScaling {
  using Element = E4M3;
  using Scale = std::uint8_t;
  static constexpr bool scaled = true, ragged = false, tensor_amax = false, hadamard = false, leaves_alpha = false;
  static constexpr Order columnwise_order = Order::as_source;

  TESSERA_FN static constexpr TensorScale tensor_scale(float) { return {}; }
  TESSERA_FN static constexpr Encoding<Scale> encoding(float amax, TensorScale) {
    constexpr float reciprocal = std::bit_cast<float>(0x3B124925u);     // RN(1/448)
    const std::uint32_t code = E8M0::encode_number(amax * reciprocal);  // an amax is never NaN
    return {static_cast<Scale>(code), E8M0::multiplier_of_number(code)};
  }
  TESSERA_FN static constexpr float tensor_step(float) { return 1.0f; }
  TESSERA_FN static constexpr float factor_step(Scale scale, float) { return E8M0::decode(scale); }
  TESSERA_FN static constexpr float step(Scale scale, float) { return E8M0::decode(scale); }
};

/// MXFP8: 32 consecutive elements of a row (rowwise) or of a column (columnwise) share a scale. The copies are
/// different quantizations: neither can be derived from the other.
struct Mxfp8 : MxScaling {
  static constexpr std::string_view name = "mxfp8";
  static constexpr Block block{1, 32};
  static constexpr Columnwise columnwise = Columnwise::requantized;
  static constexpr Agreement agreement = Agreement::nothing;

  TESSERA_FN static constexpr ScaleLayout scale_layout(Side side) {
    return {Order::as_source, {1, 1}, side == Side::rowwise ? Block{128, 4} : Block{4, 128}};
  }
};

}  // namespace tessera::formats
