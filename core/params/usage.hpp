#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/layout/param.hpp"
#include "kernels/formats/side.hpp"

namespace tessera {

/// The half of a micro-batch in which a weight is used. Recomputation of a forward belongs to backward.
enum class Half : std::uint8_t { forward, backward };

/// One call of WeightSource::operand().
struct Access {
  ParamId param;
  Side side = Side::rowwise;
  Half half = Half::forward;
  bool operator==(const Access&) const = default;
};

/// A model's use of its parameters, recorded by a dry pass. From it follow: the order of prefetch (first accesses), the
/// visits of full sharding (all accesses), and the end of a group's gradient accumulation (contributions).
struct Usage {
  std::vector<Access> training;    ///< of one micro-batch, in order
  std::vector<Access> evaluation;  ///< of one micro-batch, in order
  std::vector<ParamId> contributions;  ///< to gradients, in one micro-batch, in order

  /// Number of contributions of one micro-batch to a parameter's gradient.
  int writes(ParamId param) const { return static_cast<int>(std::ranges::count(contributions, param)); }
};

}  // namespace tessera
