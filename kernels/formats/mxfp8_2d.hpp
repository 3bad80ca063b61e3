#pragma once
#include "kernels/formats/mxfp8.hpp"

namespace tessera::formats {

/// MXFP8 with a scale per 32 x 32 tile: the rowwise data serve both directions, and scale arrays repeat each tile's
/// byte, so that a GEMM reads them like MXFP8's.
struct Mxfp8Tiles : MxScaling {
  static constexpr std::string_view name = "mxfp8_2d";
  static constexpr Block block{32, 32};
  static constexpr Columnwise columnwise = Columnwise::shared;
  static constexpr Agreement agreement = Agreement::block_amax;

  TESSERA_FN static constexpr ScaleLayout scale_layout(Side side) {
    if (side == Side::rowwise) return {Order::as_source, {32, 1}, {128, 4}};
    return {Order::as_source, {1, 32}, {4, 128}};
  }
};

}  // namespace tessera::formats
