#pragma once
#include <span>

#include "kernels/reduce/reduce.hpp"

/// A back end's faster versions of the portable kernels in reduce.cpp. Each returns false and does nothing where the
/// back end has no faster version for these arguments; the portable kernel runs then.
namespace tessera::reduce {

/// add_squares() of fp32 without the final carry: each limb is a sum of 32-bit digits, fewer than 2^31 of them a call.
bool add_squares(Stream& stream, const Tensor& words, std::span<const Tensor> xs);

/// sum_in_order() and add_in_order() of fp32.
bool sum_in_order(Stream& stream, const Tensor& out, const SumTerms& parts);
bool add_in_order(Stream& stream, const Tensor& out, const SumTerms& parts);

/// encode_gradients().
bool encode_gradients(Stream& stream, GradientWire wire, const Tensor& gradients, const WireArray& out);

}  // namespace tessera::reduce
