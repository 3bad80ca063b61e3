#pragma once
#include <cstdint>
#include <span>

#include "kernels/reduce/wire.hpp"

namespace tessera {

/// One part of each rank, as an all-to-all leaves them: the rank's own where it was, those of the others received.
struct SumTerms {
  WireArray own;     ///< [n], the part of rank `rank`
  WireArray others;  ///< [ranks - 1, n], the parts of the other ranks, in their order
  std::int64_t rank = 0;
  std::int64_t idle = 0;  ///< the last ranks, whose parts are left out of the sum (not added as zeros: -0 + 0 is 0)
  GradientWire wire = GradientWire::fp32;  ///< of all parts; with fp32 they may be fp64
};

/// Sum in rank order: out[i] = ((p0[i] + p1[i]) + p2[i]) + ..., out [n], fp32 or fp64 as the parts, fp32 for parts on a
/// wire. out may be parts.own.
void sum_in_order(Stream& stream, const Tensor& out, const SumTerms& parts);
/// The same onto a running sum: out[i] = ((out[i] + p0[i]) + p1[i]) + .... out must not be one of the parts.
void add_in_order(Stream& stream, const Tensor& out, const SumTerms& parts);

/// An exact, order-free sum of squares: fixed-point limbs that add as integers, across elements, calls and ranks alike.
/// Layout: `limbs` signed 64-bit words of 32-bit digits in units of 2^-300, lowest first, then the count of non-finite
/// elements. Starts as zeros. After add_squares the digits are canonical, so words of 2^31 ranks may be added.
struct ExactSum {
  static constexpr int limbs = 20;
  static constexpr int words = limbs + 1;
};

/// words (i64 [ExactSum::words], on the device) += squares of the elements of all of xs (fp32 or fp64 rounded to fp32).
void add_squares(Stream& stream, const Tensor& words, std::span<const Tensor> xs);

/// Adds the first column of `found` (u64 [n, any], on the device), numbers of non-finite values met elsewhere, to the
/// count in `words`.
void add_not_finite(Stream& stream, const Tensor& words, const Tensor& found);

/// *sum (a double on the device) = NaN if *found (u64 [1], on the device) is not 0.
void spoil(Stream& stream, double* sum, const Tensor& found);

/// Step scalars that follow from the gradient norm; on the device.
struct ClipResult {
  float norm = 0;         ///< sqrt of the sum of squares, rounded once to fp32; NaN if an element was not finite
  float coefficient = 1;  ///< min(1, clip / (norm + 1e-6)) in fp32; 1 if clip is 0
  std::int32_t skip = 0;  ///< 0: step; else the reason to change nothing
  static constexpr std::int32_t not_finite = 1;  ///< an element, or the norm, is not finite
  static constexpr std::int32_t spike = 2;       ///< the norm is above the step's limit
};
/// Computes *result (on the device) from the reduced words. A step with a norm above *limit (on the device) is skipped.
void clip_from_squares(Stream& stream, ClipResult* result, const Tensor& words, float clip, const float* limit);

}  // namespace tessera
