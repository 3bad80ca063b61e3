#pragma once
// The softmax of scores in a warpgroup's registers. For sources compiled for sm_90a only.
#include <cmath>
#include <cute/tensor.hpp>

#include "kernels/attention/tiles_sm90a.cuh"

namespace tessera::attention::tiles {

/// The softmax of two rows, of which a thread has values.
struct Softmax {
  float top[2] = {-INFINITY, -INFINITY};  ///< of the scores so far
  float total[2] = {0, 0};                ///< of this thread's weights so far, relative to top

  /// Combines over the four threads that share rows.
  template <class F>
  __device__ static float over_row(float x, const F& f) {
    CUTLASS_PRAGMA_UNROLL
    for (int lane = 1; lane < 4; lane *= 2) x = f(x, __shfl_xor_sync(0xFFFFFFFFu, x, lane));
    return x;
  }
  /// Turns scores into weights relative to the new top; `shrink`: what multiplies those of earlier tiles.
  template <class Scores>
  __device__ void weigh(Scores& scores, float scale_of_2, float (&shrink)[2]) {
    CUTLASS_PRAGMA_UNROLL
    for (int half = 0; half < 2; ++half) {
      float highest = top[half];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < cute::size(scores); ++i)
        if (i / 2 % 2 == half) highest = fmaxf(highest, scores(i));
      highest = over_row(highest, [](float a, float b) { return fmaxf(a, b); });
      shrink[half] = exp2_of((top[half] - highest) * scale_of_2);
      top[half] = highest;
      total[half] *= shrink[half];
    }
    const float offset[2] = {top[0] * scale_of_2, top[1] * scale_of_2};
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < cute::size(scores); ++i) {
      scores(i) = exp2_of(fmaf(scores(i), scale_of_2, -offset[i / 2 % 2]));
      total[i / 2 % 2] += scores(i);
    }
  }
  /// Ends a row: the sum of all weights.
  __device__ float sum(int half) const {
    return over_row(total[half], [](float a, float b) { return a + b; });
  }
};

}  // namespace tessera::attention::tiles
