#pragma once
#include "app/training/batches.hpp"
#include "core/step/engine.hpp"

namespace tessera {

/// Whether step `step` (from 1) is followed by an evaluation.
bool evaluation_due(const RunConfig& config, std::int64_t step);

/// Mean cross-entropy over the tokens of the evaluation windows; NaN without windows. The fp64 sums of micro-batches
/// are added in the order of the windows, so that the bits depend on no rank count. Moves nothing. Collective over the
/// world.
double evaluate(Engine& engine, Batches& batches);

}  // namespace tessera
