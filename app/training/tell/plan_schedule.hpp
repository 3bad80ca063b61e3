#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/plan/plan.hpp"

namespace tessera {

/// One all-gather of weights, as a plan shows it.
struct PlannedGather {
  std::string unit;        ///< "group 3", or the block or module of a visit
  std::string pass;        ///< "forward", "backward", or "publish" (directly after the update)
  std::string side;        ///< copy that is gathered; "both" if one payload serves both
  std::int64_t bytes = 0;  ///< received by this rank in one all-gather
  std::int64_t count = 1;  ///< all-gathers in a step
  std::string why;
};

/// The all-gathers of a step, one for each group. Under full sharding one for each visit of a micro-batch, with its
/// count, first those of the dense process group, then those of the experts'. Pure.
std::vector<PlannedGather> gathers_of(const RunPlan& plan);

/// SyncSchedule as text, a line for each pool, visit and reduction; of a step's micro-batches the first two. Pure.
std::string schedule_text(const RunPlan& plan);
/// The whole of it: {pools, resident, training, evaluation, inspection, gradient_slots, reductions, amaxes}. Pure.
nlohmann::ordered_json schedule_json(const RunPlan& plan);

}  // namespace tessera
