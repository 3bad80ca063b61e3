#pragma once
#include <cstdint>

#include "kernels/base/dtype.hpp"

namespace tessera {

/// The digest (FORMAT.md) of elements in host memory, the first of which has index `first`. Digests of a tensor's
/// pieces add up. For tools, which use no device.
std::uint64_t host_digest(const void* elements, DType type, std::int64_t count, std::int64_t first);

/// Number of elements that are not finite; 0 for types other than fp32 and bf16.
std::uint64_t non_finite(const void* elements, DType type, std::int64_t count);

/// Converts fp32 and bf16 into each other, rounding to nearest even; copies equal types.
void convert_elements(void* to, DType to_type, const void* from, DType from_type, std::int64_t count);

}  // namespace tessera
