#pragma once
#include <cstdint>
#include <string_view>

#include "kernels/base/stream.hpp"

namespace tessera {

/// Key of a counter-based random stream: Philox4x32-10 with key = seed and counter = (index lo, hi, then
/// fnv1a64("purpose:name:step") lo, hi).
struct RandomKey {
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;
};
RandomKey random_key(std::uint64_t seed, std::string_view purpose, std::string_view name, std::uint64_t step);

/// out[i] = deviation * the N(0,1) number of index first + i; fp32 or fp64. The same bits on every back end.
void fill_normal(Stream& stream, const Tensor& out, RandomKey key, std::uint64_t first, double deviation);

/// A uniform 64-bit number for one index, for shuffles and samples on the host.
std::uint64_t random_bits(RandomKey key, std::uint64_t index);

/// out[i] = value, for any real tensor.
void fill(Stream& stream, const Tensor& out, double value);

}  // namespace tessera
