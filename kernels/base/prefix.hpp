#pragma once
#include <cstdint>

#include "kernels/base/platform.hpp"

namespace tessera {

/// Binary search: the row of a descriptor table, among rows [first, last), to which piece `piece` of a launch belongs.
/// `begin` is each row's first piece; rows without a piece are skipped.
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
