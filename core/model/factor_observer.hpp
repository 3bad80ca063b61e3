#pragma once
#include <optional>
#include <span>
#include <string>

#include "kernels/base/arena.hpp"
#include "kernels/gemm/operand.hpp"
#include "kernels/quantize/measure.hpp"

namespace tessera {

/// An activation or a gradient that a product is about to read, or the copy of it that a quantizer has just made.
struct MadeFactor {
  const std::string& weight;        ///< canonical name of the product's weight
  std::optional<FormatId> format;  ///< empty: the product reads the values
  Purpose purpose;
  Side side;
  const QuantizedMatrix& matrix;  ///< what was quantized; the amax of the copy is there
  const QuantizerInput& input;    ///< or what it was computed from
  Tensor tokens;                  ///< i32 [rows]: -1 for rows of no token; empty: all are tokens'
  std::int64_t first_token = 0;   ///< of its rows, in the global batch
  Arena& arena;                   ///< for what an observer computes
};

/// A copy of a weight as a product reads it: one operand, or one for each of its parameters.
struct ReadWeight {
  const std::string& name;  ///< canonical
  Side side;
  std::span<const Operand> operands;
};

/// Sees the factors of products of a step's micro-batches, on the stream, without changing them. A factor that is
/// computed again is seen again.
class FactorObserver {
 public:
  virtual ~FactorObserver() = default;
  virtual void begin_micro_batch() = 0;
  virtual void made(Stream& stream, const MadeFactor& factor) = 0;
  virtual void read(Stream& stream, const ReadWeight& weight) = 0;
};

}  // namespace tessera
