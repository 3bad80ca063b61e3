#pragma once
#include "kernels/quantize/scales.cuh"

/// Device code: encodings of blocks by their largest magnitude, and by errors where a format has two to choose from.
namespace tessera::quantizer::device {

/// The error of eight values of a block under a multiplier.
template <Format F>
__device__ std::uint32_t error_of_run(const float (&x)[run], float multiplier) {
  float v[run], q[run];
#pragma unroll
  for (int c = 0; c < run; ++c) v[c] = x[c] * multiplier;
  round_run(typename F::Element(), v, q);
  std::uint32_t sum = 0;
#pragma unroll
  for (int c = 0; c < run; ++c) sum += F::error(v[c], q[c]);
  return sum;
}

/// Takes one of two encodings; error(multiplier) is the block's.
template <Format F, class Error>
__device__ formats::Encoding<typename F::Scale> chosen(const formats::Encoding<typename F::Scale>& one,
                                                       const formats::Encoding<typename F::Scale>& other,
                                                       const Error& error) {
  return F::takes_other(one.scale, error(one.multiplier), other.scale, error(other.multiplier)) ? other : one;
}

/// Encoding of the block in which row r of the thread's values lies, along neighbouring lanes.
template <Format F, class X>
__device__ formats::Encoding<typename F::Scale> encoding_of_row(const Encodings<F>& encoding_of, std::uint32_t top,
                                                                const formats::TensorScale& line, const X& x, int r) {
  const auto one = encoding_of(top, line);
  if constexpr (!formats::chooses<F>) {
    return one;
  } else {
    static_assert(F::block.columns == 2 * run);
    float v[run];
#pragma unroll
    for (int c = 0; c < run; ++c) v[c] = x.value(r, c);
    return chosen<F>(one, encoding_of.other(top), [&](float multiplier) {
      const std::uint32_t mine = error_of_run<F>(v, multiplier);
      return mine + __shfl_xor_sync(whole_warp, mine, 1);
    });
  }
}

/// Encoding of a block whose values are sixteen of a column, or of which they are a part where no choice is made.
template <Format F>
__device__ formats::Encoding<typename F::Scale> encoding_of_column(const Encodings<F>& encoding_of, std::uint32_t top,
                                                                   const formats::TensorScale& line,
                                                                   const float (&y)[height]) {
  const auto one = encoding_of(top, line);
  if constexpr (!formats::chooses<F>) {
    return one;
  } else {
    static_assert(F::block.columns == height);
    return chosen<F>(one, encoding_of.other(top), [&](float multiplier) {
      std::uint32_t sum = 0;
#pragma unroll
      for (int half = 0; half < height; half += run) {
        float v[run];
#pragma unroll
        for (int r = 0; r < run; ++r) v[r] = y[half + r];
        sum += error_of_run<F>(v, multiplier);
      }
      return sum;
    });
  }
}

/// Encoding of the tile in which the thread's values lie.
template <Format F, class X>
__device__ formats::Encoding<typename F::Scale> encoding_of_tile(const formats::TensorScale& tensor, std::uint32_t top,
                                                                 const X& x) {
  const auto one = F::encoding(largest_of(top), tensor);
  if constexpr (!formats::chooses<F>) {
    return one;
  } else {
    static_assert(F::block.rows == height && F::block.columns == 2 * run);
    return chosen<F>(one, F::other_encoding(largest_of(top), tensor), [&](float multiplier) {
      unsigned long long sum = 0;
#pragma unroll
      for (int r = 0; r < height; ++r) {
        float v[run];
#pragma unroll
        for (int c = 0; c < run; ++c) v[c] = x.value(r, c);
        sum += error_of_run<F>(v, multiplier);
      }
      return sum + __shfl_xor_sync(whole_warp, sum, 1);
    });
  }
}

}  // namespace tessera::quantizer::device
