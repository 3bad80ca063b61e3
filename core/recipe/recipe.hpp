#pragma once
#include <span>

#include "kernels/base/dtype.hpp"

namespace tessera {

/// How a weight is kept, as capabilities; a further format is a row in the table of recipes, never a condition
/// elsewhere.
struct StorageFormat {
  const char* name;
  DType element;              ///< the type of what a GEMM reads
  std::int64_t wire_bytes;    ///< per element on the wire
  std::int64_t cut_multiple;  ///< shard cuts are multiples of this many elements, so that no byte is split
  bool operator==(const StorageFormat& other) const { return element == other.element; }
};

/// Formats of one run: what the weights are kept in.
struct Recipe {
  const char* name;
  StorageFormat weight;
};

/// The whole table.
std::span<const Recipe> recipes();

/// The row of a compute type: weights are kept and travel in it, Q is the rounding to it.
const Recipe& recipe_of(DType compute);

}  // namespace tessera
