#pragma once
#include "kernels/formats/e8m0.hpp"
#include "kernels/formats/format.hpp"
#include "kernels/formats/minifloat.hpp"

/// The MX formats: blocks of 32 elements with an E8M0 scale. A scale is RN(amax * RN(1 / max)) rounded up, max being
/// the element's largest value. Source of elements and scales: OCP Microscaling Formats v1.0; it rounds scales down.
namespace tessera::formats {

/// Scaling of elements by E8M0 scales, whatever the blocks.
template <class ElementCodec>
struct MxScaling {
  using Element = ElementCodec;
  using Scale = std::uint8_t;
  static constexpr bool scaled = true, ragged = false, tensor_amax = false, hadamard = false, leaves_alpha = false;
  static constexpr Order columnwise_order = Order::as_source;

  TESSERA_FN static constexpr TensorScale tensor_scale(float) { return {}; }
  TESSERA_FN static constexpr Encoding<Scale> encoding(float amax, TensorScale) {
    constexpr float reciprocal = 1.0f / Element::max;  // mutation: scale_of_another_element
    const std::uint32_t code = E8M0::encode_number(amax * reciprocal);  // an amax is never NaN
    return {static_cast<Scale>(code), E8M0::multiplier_of_number(code)};
  }
  TESSERA_FN static constexpr float tensor_step(float) { return 1.0f; }
  TESSERA_FN static constexpr float factor_step(Scale scale, float) { return E8M0::decode(scale); }
  TESSERA_FN static constexpr float step(Scale scale, float) { return E8M0::decode(scale); }
};

/// 32 consecutive elements of a row (rowwise) or of a column (columnwise) share a scale. The copies are different
/// quantizations: neither can be derived from the other.
template <class Element>
struct MxRows : MxScaling<Element> {
  static constexpr Block block{1, 32};
  static constexpr Columnwise columnwise = Columnwise::requantized;
  static constexpr Agreement agreement = Agreement::nothing;

  TESSERA_FN static constexpr ScaleLayout scale_layout(Side side) {
    return {Order::as_source, {1, 1}, side == Side::rowwise ? Block{128, 4} : Block{4, 128}};
  }
};

/// A scale per 32 x 32 tile: the rowwise data serve both directions, and scale arrays repeat each tile's byte, so that
/// a GEMM reads them like those of MxRows.
template <class Element>
struct MxTiles : MxScaling<Element> {
  static constexpr Block block{32, 32};
  static constexpr Columnwise columnwise = Columnwise::shared;
  static constexpr Agreement agreement = Agreement::block_amax;

  TESSERA_FN static constexpr ScaleLayout scale_layout(Side side) {
    if (side == Side::rowwise) return {Order::as_source, {32, 1}, {128, 4}};
    return {Order::as_source, {1, 32}, {4, 128}};
  }
};

struct Mxfp8 : MxRows<E4M3> {
  static constexpr std::string_view name = "mxfp8";
};
struct Mxfp8Tiles : MxTiles<E4M3> {
  static constexpr std::string_view name = "mxfp8_2d";
};
/// For activations and gradients, whose range is wider.
struct Mxfp8E5m2 : MxRows<E5M2> {
  static constexpr std::string_view name = "mxfp8_e5m2";
};
struct Mxfp6E3m2 : MxRows<E3M2> {
  static constexpr std::string_view name = "mxfp6_e3m2";
};
struct Mxfp6E3m2Tiles : MxTiles<E3M2> {
  static constexpr std::string_view name = "mxfp6_e3m2_2d";
};
struct Mxfp6E2m3 : MxRows<E2M3> {
  static constexpr std::string_view name = "mxfp6_e2m3";
};
struct Mxfp6E2m3Tiles : MxTiles<E2M3> {
  static constexpr std::string_view name = "mxfp6_e2m3_2d";
};
struct Mxfp4 : MxRows<E2M1> {
  static constexpr std::string_view name = "mxfp4";
};
struct Mxfp4Tiles : MxTiles<E2M1> {
  static constexpr std::string_view name = "mxfp4_2d";
};

}  // namespace tessera::formats
