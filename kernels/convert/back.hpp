#pragma once
#include "kernels/base/platform.hpp"
#include "kernels/convert/convert.hpp"

/// Parts that back ends share, and a back end's faster version of the portable kernel in table.cpp. It returns false,
/// having done nothing, if there is none.
namespace tessera::convert_table {

/// The pair among [first, last) to which a chunk belongs.
TESSERA_FN inline int pair_of(const ConvertTable::Row* rows, int first, int last, std::int64_t chunk) {
  while (last - first > 1) {
    const int middle = first + (last - first) / 2;
    (rows[middle].first_chunk <= chunk ? first : last) = middle;
  }
  return first;
}

/// Converts pairs [first, last), at least one, on a stream that is not dry.
bool convert_pairs(Stream& stream, const ConvertTable& table, int first, int last);

}  // namespace tessera::convert_table
