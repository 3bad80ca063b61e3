#pragma once
#include <span>

#include "core/step/engine.hpp"
#include "io/metrics/metrics_log.hpp"

namespace tessera {

/// Progress of a run after a step.
struct Progress {
  std::int64_t step = 0;     ///< from 1
  std::int64_t samples = 0;  ///< trained on so far
  std::optional<std::int64_t> targets = {};  ///< of the step; nothing: every token was one
};

/// The metrics row of a step that took `seconds`, with means made from the sums over targets, tokens, sequences and MoE
/// layers. The loss of a step without a target is 0. RunLog fills in time, memory, ranks, MFU and restart. Pure.
MetricsRow row_of(const RunConfig& config, const Progress& progress, const StepReport& report, double seconds);

/// Adds an evaluation's losses, by set, to the row of the step before it. The followed set's is the row's loss; where
/// sets have names, the row has all of them.
void add_evaluation(MetricsRow& row, const RunConfig& config, std::span<const double> losses);

}  // namespace tessera
