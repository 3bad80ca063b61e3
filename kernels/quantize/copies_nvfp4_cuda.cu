// Quantizers of NVFP4 in all its forms.
#include "kernels/quantize/copies.cuh"

namespace tessera::quantizer::device {

template void make_copies_of<Family::nvfp4>(Stream&, FormatId, const TableView&, Reading, Purpose);

}  // namespace tessera::quantizer::device
