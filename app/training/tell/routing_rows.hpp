#pragma once
#include <vector>

#include "core/config/config.hpp"
#include "core/step/step_memory.hpp"
#include "io/metrics/routing_row.hpp"

namespace tessera {

/// A row for each layer with experts of what a step's report says of its routing; none where none is recorded. Local.
std::vector<RoutingRow> routing_rows(const RunConfig& config, std::int64_t step, const StepReport& report);

}  // namespace tessera
