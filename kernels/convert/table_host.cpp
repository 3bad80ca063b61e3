// The host has no faster version: the portable kernel is vectorised as it is.
#include "kernels/convert/back.hpp"

namespace tessera::convert_table {

bool convert_pairs(Stream&, const ConvertTable&, int, int) { return false; }

}  // namespace tessera::convert_table
