// The host has no faster version than the portable kernel.
#include "kernels/convert/back.hpp"

namespace tessera::convert_table {

bool convert_pairs(Stream&, const ConvertTable&, int, int) { return false; }

}  // namespace tessera::convert_table
