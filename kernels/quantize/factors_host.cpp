#include "kernels/quantize/described_back.hpp"

namespace tessera::quantizer {

// One pass that decodes a patch while it is in the caches would gain too little.
void make_factors(Stream& stream, FormatId format, const QuantizedMatrix& matrix, Purpose purpose) {
  make_factors_by_codes(stream, format, matrix, purpose);
}

}  // namespace tessera::quantizer
