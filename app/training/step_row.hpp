#pragma once
#include "core/step/engine.hpp"
#include "io/metrics/metrics_log.hpp"

namespace tessera {

/// What the log says of a training step that took `seconds`: sums over tokens, sequences and MoE layers become means.
MetricsRow row_of(const RunConfig& config, std::int64_t step, const StepReport& report, double seconds);

}  // namespace tessera
