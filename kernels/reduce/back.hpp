#pragma once
#include <span>

#include "kernels/reduce/reduce.hpp"

/// What a back end does faster than the portable kernels of reduce.cpp. False, with nothing done: the portable kernel
/// serves.
namespace tessera::reduce {

/// add_squares() of fp32, checked, but for the carry: limbs are sums of 32-bit digits, fewer than 2^31 a call.
bool add_squares(Stream& stream, const Tensor& words, std::span<const Tensor> xs);

}  // namespace tessera::reduce
