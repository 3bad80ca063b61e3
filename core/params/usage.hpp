#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/layout/param.hpp"
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
/// accesses, visits under full sharding from all, the end of a group's gradient accumulation from the contributions.
struct Usage {
  std::vector<Access> training;    ///< of one micro-batch, in order
  std::vector<Access> evaluation;  ///< of one micro-batch, in order
  std::vector<ParamId> contributions;  ///< to gradients, of one micro-batch, in order

  /// Contributions of one micro-batch to a parameter's gradient.
  int writes(ParamId param) const { return static_cast<int>(std::ranges::count(contributions, param)); }
};

}  // namespace tessera
