#pragma once
#include "core/layout/param.hpp"
#include "kernels/base/stream.hpp"
#include "kernels/gemm/operand.hpp"

namespace tessera {

/// The way to a weight. Implemented by Weights (which walks the group to Ready) and by the plan's recorder.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  /// The current value as a GEMM operand [out, in] (vectors: [n]; grouped: all members). Orders `stream` behind the
  /// gather and begins the next group's; collective in effect, so every rank asks in the same order.
  virtual Operand operand(Stream& stream, ParamId param, Side side) = 0;
};

/// The way to a gradient. Implemented by the Accumulating token and by the plan's recorder.
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  /// Where the next contribution to `param` goes; beta is 0 on the step's first.
  virtual Gradient slot(ParamId param) = 0;
  /// Says that the contribution given out by slot() has been written on `stream`: on the last one of the step the
  /// group's reduction may begin.
  virtual void written(Stream& stream, ParamId param) = 0;
};

}  // namespace tessera
