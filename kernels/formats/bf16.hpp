#pragma once
#include "kernels/formats/format.hpp"

namespace tessera::formats {

/// bf16 as a format without scales: one copy serves both directions.
struct Bf16 {
  struct Element {
    using Storage = std::uint16_t;
    static constexpr int bits = 16;
    TESSERA_FN static constexpr std::uint32_t encode(float x) { return bf16(x).bits; }
    TESSERA_FN static constexpr float decode(std::uint32_t code) { return std::bit_cast<float>(code << 16); }
  };
  using Scale = std::uint8_t;
  static constexpr std::string_view name = "bf16";
  static constexpr Block block{1, 1};
  static constexpr bool scaled = false, ragged = true, tensor_amax = false, hadamard = false, leaves_alpha = false;
  static constexpr Columnwise columnwise = Columnwise::shared;
  static constexpr Order columnwise_order = Order::as_source;
  static constexpr Agreement agreement = Agreement::nothing;

  TESSERA_FN static constexpr ScaleLayout scale_layout(Side) { return {}; }
  TESSERA_FN static constexpr TensorScale tensor_scale(float) { return {}; }
  TESSERA_FN static constexpr Encoding<Scale> encoding(float, TensorScale) { return {0, 1.0f}; }
  TESSERA_FN static constexpr float tensor_step(float) { return 1.0f; }
  TESSERA_FN static constexpr float factor_step(Scale, float) { return 1.0f; }
  TESSERA_FN static constexpr float step(Scale, float) { return 1.0f; }
};

}  // namespace tessera::formats
