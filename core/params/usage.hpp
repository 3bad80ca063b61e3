#pragma once
#include <cstdint>
#include <vector>

#include "core/layout/param.hpp"
#include "kernels/base/indexed_by.hpp"
#include "kernels/formats/side.hpp"

namespace tessera {

/// The half of a micro-batch in which a weight is asked for; a forward that is computed again belongs to backward.
enum class Half : std::uint8_t { forward, backward };

/// One call of WeightSource::operand().
struct Access {
  ParamId param;
  Side side = Side::rowwise;
  Half half = Half::forward;
  bool operator==(const Access&) const = default;
};

/// How a model uses its parameters, as a dry pass sees it. The order of all-gathers (prefetch) follows from the first
/// accesses, the end of a group's gradient accumulation from the writes.
struct Usage {
  std::vector<Access> training;    ///< of one micro-batch, in order
  std::vector<Access> evaluation;  ///< of one micro-batch, in order
  IndexedBy<ParamId, int> writes;  ///< contributions of one micro-batch to each parameter's gradient
};

}  // namespace tessera
