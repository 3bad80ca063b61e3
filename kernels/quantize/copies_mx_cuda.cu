// Quantizers of the MX formats.
#include "kernels/quantize/copies.cuh"

namespace tessera::quantizer::device {

template void make_copies_of<Family::mx>(Stream&, FormatId, const TableView&, Reading, Purpose);

}  // namespace tessera::quantizer::device
