#pragma once
#include "kernels/reduce/reduce.hpp"

namespace tessera {

/// Steps a moving average [n] of masters [n], both fp32: average += rate (master - average), rounded after each of the
/// three operations. Nothing changes where clip->skip (on the device) is set. Orders on `stream`. Local.
void average_step(Stream& stream, const Tensor& average, const Tensor& master, float rate, const ClipResult* clip);

/// Exchanges the values of two tensors [n] of fp32. Orders on `stream`. Local.
void exchange_values(Stream& stream, const Tensor& one, const Tensor& other);

}  // namespace tessera
