#pragma once
#include "kernels/base/platform.hpp"
#include "kernels/convert/convert.hpp"

/// Parts that back ends share, and a back end's faster version of the portable kernel in table.cpp. It returns false,
/// having done nothing, if there is none.
namespace tessera::convert_table {

/// Converts pairs [first, last), at least one, on a stream that is not dry.
bool convert_pairs(Stream& stream, const ConvertTable& table, int first, int last);

}  // namespace tessera::convert_table
