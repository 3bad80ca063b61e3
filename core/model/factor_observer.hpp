#pragma once
#include <string>

#include "kernels/quantize/measure.hpp"

namespace tessera {

/// A copy of an activation or a gradient that a quantizer has just made for a product.
struct MadeFactor {
  const std::string& weight;  ///< canonical name of the product's weight
  FormatId format;
  Purpose purpose;
  Side side;
  const QuantizedMatrix& matrix;  ///< what was quantized; the amax of the copy is there
  const QuantizerInput& input;    ///< or what it was computed from
  Tensor tokens;                  ///< i32 [rows]: -1 for rows of no token; empty: all are tokens'
  std::int64_t first_token = 0;   ///< of its rows, in the global batch
};

/// Sees each quantized factor of a step's micro-batches, on the stream, without changing it. A factor that is computed
/// again is seen again.
class FactorObserver {
 public:
  virtual ~FactorObserver() = default;
  virtual void begin_micro_batch() = 0;
  virtual void made(Stream& stream, const MadeFactor& factor) = 0;
};

}  // namespace tessera
