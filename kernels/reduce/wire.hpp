#pragma once
#include <cstdint>

#include "kernels/base/stream.hpp"

/// Gradients in the few bytes in which they travel between ranks.
namespace tessera {

/// The format in which gradients travel and enter sums. mxfp8: E4M3 in blocks of 32, each with an E8M0 scale.
/// fp8_block: E4M3 in blocks of 128, each with an fp32 scale, a power of two. Blocks are consecutive elements.
enum class GradientWire : std::uint8_t { fp32, bf16, mxfp8, fp8_block };

/// How an array travels on a wire.
struct WireTraits {
  DType values = DType::f32;   ///< fp32 and bf16 as such; codes as u8
  DType scales = DType::u8;
  std::int64_t block = 0;      ///< elements that share a scale; 0: no scales
};
constexpr WireTraits traits_of(GradientWire wire) {
  switch (wire) {
    case GradientWire::bf16: return {DType::bf16};
    case GradientWire::mxfp8: return {DType::u8, DType::u8, 32};
    case GradientWire::fp8_block: return {DType::u8, DType::f32, 128};
    default: return {};
  }
}
/// Elements at whose multiples an array on a wire can be cut.
constexpr std::int64_t cut_of(GradientWire wire) {
  const std::int64_t block = traits_of(wire).block;
  return block > 0 ? block : 1;
}

/// An array on a wire, [n] or [rows, n].
struct WireArray {
  Tensor values;
  Tensor scales;  ///< [n / block] or [rows, n / block]; none without blocks

  WireArray() = default;
  WireArray(const Tensor& array, const Tensor& scales_of_blocks = {}) : values(array), scales(scales_of_blocks) {}
};

/// What the random numbers of a step's reductions follow from. Kernels read the step on the device, so that replays of
/// a captured launch draw new numbers.
struct WireKey {
  std::uint64_t seed = 0;
  Tensor step = {};  ///< u64 [1] on the device
};

/// The random numbers with which gradients are rounded to bf16. Element i of a dataset has a draw of 16 bits for each
/// step and micro-batch, whatever rank computes it.
struct WireDraws {
  WireKey key;
  std::uint64_t name = 0;        ///< hash of the dataset's name
  std::int64_t micro_batch = 0;  ///< number in the step
  std::int64_t first = 0;        ///< index of the first element in the dataset
};

/// out = gradients (fp32 [n]) rounded to a wire: to bf16, nearest even, or to blocks of codes. A block's scale is that
/// of its largest magnitude, rounded up, so that nothing saturates. A block that holds NaN or infinity is NaN
/// throughout: the sum that it enters is not finite. n is a multiple of the block.
void encode_gradients(Stream& stream, GradientWire wire, const Tensor& gradients, const WireArray& out);
/// out (bf16 [n]) = gradients, rounded at random to one of the two neighbours, up with a probability in proportion to
/// the distance from the lower. NaN and infinity stay.
void encode_at_random(Stream& stream, const Tensor& gradients, const Tensor& out, const WireDraws& draws);

}  // namespace tessera
