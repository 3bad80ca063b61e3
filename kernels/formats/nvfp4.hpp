#pragma once
#include "kernels/formats/fp8_block.hpp"

namespace tessera::formats {

/// NVFP4: E2M1 elements, an E4M3 scale per block, an fp32 amax per tensor. The bits depend on the order of operations.
/// `largest_scale` is what a block of the tensor's amax has as its scale.
template <Block shape, int largest_scale = 448>
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
    const float encode = unit ? 1.0f : at_most_largest(top / amax);
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
  TESSERA_FN static constexpr float tensor_step(float amax) { return amax * (1.0f / top); }
  TESSERA_FN static constexpr float step(Scale scale, float amax) {
    return E4M3::decode(scale) * amax * (1.0f / top);
  }

 protected:
  static constexpr float top = largest_scale * Element::max;  ///< the tensor's amax, multiplied
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

/// NVFP4 with a scale a line (by_lines) in place of the tensor's. It is a power of two, so that decoded values have it
/// inside, exact in bf16, and no row or column of a result is scaled afterwards. Its amax is stored.
struct Nvfp4Row : Nvfp4Scaling<Block{1, 16}> {
  static constexpr std::string_view name = "nvfp4_row";
  static constexpr bool leaves_alpha = false, line_amax = true;

  TESSERA_FN static constexpr TensorScale tensor_scale(float amax) {
    const float power = power_multiplier(top, amax);
    return {power, inverse_of_power(power)};
  }
  TESSERA_FN static constexpr Encoding<Scale> encoding(float amax, TensorScale line) {
    const std::uint32_t code = ScaleElement::encode(wanted_scale(amax, line));
    return {static_cast<Scale>(code), multiplier(code, line)};
  }
  /// The multiplier in two steps: a power of two moves the inverse of a stored scale without rounding it again.
  TESSERA_FN static constexpr float multiplier(std::uint32_t scale, TensorScale line) {
    return moved(inverse_of(scale), line);
  }
  TESSERA_FN static constexpr float inverse_of(std::uint32_t scale) { return 1.0f / ScaleElement::decode(scale); }
  TESSERA_FN static constexpr float moved(float inverse, TensorScale line) {
    return at_most_largest(inverse * line.encode);  // mutation: rows_by_the_inverse
  }
  TESSERA_FN static constexpr float tensor_step(float amax) { return tensor_scale(amax).inverse; }
  TESSERA_FN static constexpr float step(Scale scale, float amax) {
    return ScaleElement::decode(scale) * tensor_step(amax);
  }
  TESSERA_FN static constexpr float factor_step(Scale scale, float amax) { return step(scale, amax); }
};

/// NVFP4 with "four over six": a block's amax becomes 6 or 4, whichever loses less. Scales of up to 448 leave room for
/// one and a half times those of a tensor's amax, 256.
template <Block shape>
struct FourOverSix : Nvfp4Scaling<shape, 256> {
  using Base = Nvfp4Scaling<shape, 256>;
  using Scale = typename Base::Scale;
  /// Errors are known to the owner of a whole block alone, so that ranks cannot agree on blocks.
  static constexpr Agreement agreement = Base::square ? Agreement::tensor_amax : Agreement::nothing;

  /// The scale that makes the amax 4.
  TESSERA_FN static constexpr Encoding<Scale> other_encoding(float amax, TensorScale tensor) {
    const std::uint32_t code = Base::ScaleElement::encode(other_wanted(Base::wanted_scale(amax, tensor)));
    return {static_cast<Scale>(code), Base::multiplier(code, tensor)};
  }
  TESSERA_FN static constexpr float other_wanted(float wanted) { return Base::at_most_largest(1.5f * wanted); }

  /// |v - q| in units of 2^-20, to nearest even, at most 2^26; 0 for NaN.
  TESSERA_FN static constexpr std::uint32_t error(float v, float q) {
    constexpr float unit = 0x1p20f, most = 0x1p26f, whole = 0x1p23f;  // from `whole` on all numbers are integers
    const float difference = v - q, distance = (difference < 0.0f ? -difference : difference) * unit;
    const float bounded = distance < most ? distance : most;
    const float rounded = bounded < whole ? (bounded + whole) - whole : bounded;
    return v == v ? static_cast<std::uint32_t>(static_cast<std::int32_t>(rounded)) : 0u;
  }
  /// Whether the block's error in units of the tensor's scale is smaller with a 4, or its scale with a 6 underflows.
  TESSERA_FN static constexpr bool takes_other(Scale six, std::uint64_t error6, Scale four, std::uint64_t error4) {
    const std::uint64_t units6 = units_of(six), units4 = units_of(four);
    return units4 * error4 < units6 * error6 ||  // mutation: a_tie_takes_four
           (units6 == 0 && units4 > 0);
  }

 private:
  /// A positive E4M3 number in units of its smallest, 2^-9.
  TESSERA_FN static constexpr std::uint64_t units_of(std::uint32_t code) {
    const std::uint64_t mantissa = code & 7u;
    const std::uint32_t exponent = code >> 3;
    return exponent == 0 ? mantissa : (mantissa + 8) << (exponent - 1);
  }
};

struct Nvfp4FourOverSix : FourOverSix<Block{16, 16}> {
  static constexpr std::string_view name = "nvfp4_46";
};
struct Nvfp4FourOverSixOneD : FourOverSix<Block{1, 16}> {
  static constexpr std::string_view name = "nvfp4_46_1d";
};

}  // namespace tessera::formats
