#pragma once
#include <string>
#include <vector>

#include "core/plan/plan.hpp"

namespace tessera {

/// One all-gather of weights, as a plan shows it.
struct PlannedGather {
  std::string unit;        ///< "group 3", or the block or module that is visited
  std::string pass;        ///< "forward", "backward", or "publish": right behind the update
  std::string side;        ///< "both" where one payload serves both
  std::int64_t bytes = 0;  ///< that this rank receives
  std::int64_t count = 1;  ///< a step
  std::string why;
};

/// The all-gathers of a step: each group once; under full sharding each visit of a micro-batch, one process group's in
/// order behind the other's, and how often it is gathered.
std::vector<PlannedGather> gathers_of(const RunPlan& plan);

}  // namespace tessera
