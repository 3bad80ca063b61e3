#pragma once
#include <cstdint>

#include "kernels/base/platform.hpp"

namespace tessera {

/// The row of a descriptor table to which piece `piece` of a launch belongs, of rows [first, last) that say where their
/// own pieces begin. Rows without a piece are passed over.
template <class Row>
TESSERA_FN const Row& row_of_piece(const Row* rows, std::int64_t first, std::int64_t last, std::int64_t Row::*begin,
                                   std::int64_t piece) {
  while (last - first > 1) {
    const std::int64_t middle = first + (last - first) / 2;
    (rows[middle].*begin <= piece ? first : last) = middle;
  }
  return rows[first];
}

}  // namespace tessera
