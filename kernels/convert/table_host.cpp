// On the host the portable kernel is the fast one.
#include "kernels/convert/back.hpp"

namespace tessera::convert_table {

bool convert_pairs(Stream&, const ConvertTable&, int, int) { return false; }

}  // namespace tessera::convert_table
