#pragma once
#include "kernels/base/stream.hpp"

namespace tessera {

/// to[i] = from[i], converted (fp32 -> bf16 rounds to nearest even; fp64 -> bf16 goes through fp32). Real types, equal
/// element counts.
void convert(Stream& stream, const Tensor& to, const Tensor& from);
/// Bytes of equal size on the device.
void copy(Stream& stream, const Tensor& to, const Tensor& from);
/// Zeroes.
void clear(Stream& stream, const Tensor& t);

}  // namespace tessera
