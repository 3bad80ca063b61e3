#pragma once
#include <memory>

#include "app/training/beginning.hpp"
#include "app/training/prepared_run.hpp"
#include "app/training/run_log.hpp"
#include "core/comm/mpi.hpp"
#include "core/plan/library_plans.hpp"

namespace tessera {

inline constexpr const char* plan_file = "plan.txt";

/// Rank 0's log, null elsewhere, and what else the run directory says of this start: the resolved deck, the plan,
/// run.json, a branch that begins. Collective.
std::unique_ptr<RunLog> open_records(const PreparedRun& run, const RunRequest& request, const AgreedPlans& plans,
                                     const Beginning& beginning, const Mpi& mpi, Control& control);

}  // namespace tessera
