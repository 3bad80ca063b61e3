// Quantizers of FP8 with scales of tensors and blocks, and of bf16.
#include "kernels/quantize/copies.cuh"

namespace tessera::quantizer::device {

template void make_copies_of<Family::fp8>(Stream&, FormatId, const TableView&, Reading, Purpose);

}  // namespace tessera::quantizer::device
