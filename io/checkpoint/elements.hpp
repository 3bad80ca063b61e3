#pragma once
#include <cstdint>

#include "kernels/base/dtype.hpp"

namespace tessera {

/// The digest of FORMAT.md of elements in host memory, the first of which has index `first`: for tools,
/// which start no device. Pieces of a tensor add up.
std::uint64_t host_digest(const void* elements, DType type, std::int64_t count, std::int64_t first);

/// How many elements are not finite; other types than fp32 and bf16 have none.
std::uint64_t non_finite(const void* elements, DType type, std::int64_t count);

/// fp32 and bf16 into each other, rounding to nearest even; any type into itself.
void convert_elements(void* to, DType to_type, const void* from, DType from_type, std::int64_t count);

}  // namespace tessera
