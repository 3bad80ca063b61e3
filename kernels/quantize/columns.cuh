#pragma once
#include "kernels/quantize/patch.cuh"

/// Device code: the columns of a patch as the columnwise copy sees them, rotated or not.
namespace tessera::quantizer::device {

/// Whether a mode applies the Hadamard rotation, and stochastic rounding.
template <Format F, class M>
inline constexpr bool rotates = F::hadamard&& M::rotates;
template <Format F, class M>
inline constexpr bool rounds_at_random = formats::may_draw<F>&& M::draws;

/// Hadamard rotation of sixteen values of a column except for its last step: butterflies between values eight apart,
/// and the factor.
template <class X>
__device__ void nearly_rotated(const X& x, int c, float (&y)[height]) {
  static_assert(height == hadamard_block);
#pragma unroll
  for (int r = 0; r < height; ++r) y[r] = hadamard_signs >> r & 1u ? -x.value(r, c) : x.value(r, c);
#pragma unroll
  for (int stride = 1; stride < height / 2; stride *= 2)
#pragma unroll
    for (int r = 0; r < height; ++r) {
      if (r & stride) continue;
      const float a = y[r], b = y[r + stride];
      y[r] = a + b;
      y[r + stride] = a - b;
    }
}
inline constexpr float rotation_factor = 0.25f;
__device__ inline void finish_rotation(float (&y)[height]) {
#pragma unroll
  for (int r = 0; r < height / 2; ++r) {
    const float a = y[r], b = y[r + height / 2];
    y[r] = (a + b) * rotation_factor;
    y[r + height / 2] = (a - b) * rotation_factor;
  }
}
/// Largest magnitude of what finish_rotation() will make, but for the factor: of a + b and a - b the larger one is
/// |a| + |b|, which is rounded likewise.
__device__ inline float largest_when_rotated(const float (&y)[height]) {
  float top = 0;
#pragma unroll
  for (int r = 0; r < height / 2; ++r) top = fmaxf(top, fabsf(y[r]) + fabsf(y[r + height / 2]));
  return top;
}

/// Sixteen values of a column and, if they are rotated here, their largest magnitude.
template <bool rotated, class X>
__device__ void column_of(const X& x, int c, float (&y)[height], std::uint32_t& top) {
  if constexpr (rotated) {
    nearly_rotated(x, c, y);
    top = __float_as_uint(largest_when_rotated(y) * rotation_factor);
    finish_rotation(y);
  } else {
#pragma unroll
    for (int r = 0; r < height; ++r) y[r] = x.value(r, c);
  }
}

/// Shared memory for the largest magnitudes of columns, where a block is as high as a patch.
template <Format F>
struct ColumnTops {
  std::uint32_t of_band[F::block == formats::Block{1, patch_edge} ? threads / 16 : 1][patch_edge];
};

/// Largest magnitude of the blocks in the thread's columns, over as many bands of sixteen rows as a block has.
template <Format F, class X>
__device__ void largest_of_column_blocks(const X& x, const Seat& seat, std::uint32_t (&top)[run],
                                         [[maybe_unused]] ColumnTops<F>& shared) {
  constexpr int length = F::block.columns;
  largest_of_columns(x, top);
  if constexpr (length == 2 * height) {
#pragma unroll
    for (std::uint32_t& t : top) t = shuffled_larger(t, 16);
  } else if constexpr (length == patch_edge) {
#pragma unroll
    for (int c = 0; c < run; ++c) shared.of_band[seat.row / height][seat.column + c] = top[c];
    __syncthreads();
#pragma unroll
    for (int c = 0; c < run; ++c)
#pragma unroll
      for (int band = 0; band < threads / 16; ++band) top[c] = larger(top[c], shared.of_band[band][seat.column + c]);
  } else {
    static_assert(length == height);
  }
}

}  // namespace tessera::quantizer::device
