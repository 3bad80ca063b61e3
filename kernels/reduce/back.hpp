#pragma once
#include <span>

#include "kernels/reduce/reduce.hpp"

/// A back end's faster versions of the portable kernels in reduce.cpp. They return false, having done nothing, if there
/// is none.
namespace tessera::reduce {

/// add_squares() of fp32, checked, but for the carry: limbs are sums of 32-bit digits, fewer than 2^31 a call.
bool add_squares(Stream& stream, const Tensor& words, std::span<const Tensor> xs);

}  // namespace tessera::reduce
