#pragma once
#include "core/params/tokens.hpp"

namespace tessera {

/// Observes a step from inside, on the stream, without changing it. debug.trace and debug.tensors implement it.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  virtual void begun() = 0;                                            ///< a step begins
  virtual void reduced(Stream& stream, const Reduced& gradients) = 0;  ///< after the sum over ranks, before clipping
  virtual void stepped(Stream& stream) = 0;                            ///< after the update of the masters
};

}  // namespace tessera
