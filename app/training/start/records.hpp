#pragma once
#include <memory>
#include <optional>

#include "app/training/start/beginning.hpp"
#include "app/training/start/prepared_run.hpp"
#include "app/training/tell/run_log.hpp"
#include "core/comm/mpi.hpp"
#include "core/plan/library_plans.hpp"

namespace tessera {

inline constexpr const char* plan_file = "plan.txt";

/// Opens the run's log (null except on rank 0), and writes the other records of this start to the run directory. These
/// are the resolved deck, the plan, run.json, and a branch if one begins. Collective over the world.
std::unique_ptr<RunLog> open_records(const PreparedRun& run, const RunRequest& request, const AgreedPlans& plans,
                                     const Beginning& beginning, const Mpi& mpi, Control& control);

/// On rank 0 the row of step `kept`, the one done last, if a stop has abandoned the evaluation that follows it; else
/// nothing. Throws on all ranks Error{environment} if the rows cannot be read. Collective over the world.
std::optional<MetricsRow> row_to_complete(const RunConfig& config, const Training& training, std::int64_t kept,
                                          Control& control);

}  // namespace tessera
