#pragma once
#include "app/training/batches.hpp"
#include "core/step/engine.hpp"

namespace tessera {

/// Whether an evaluation follows step `step` (from 1).
bool evaluation_due(const RunConfig& config, std::int64_t step);

/// Mean cross-entropy (nats) over the tokens of the evaluation windows; NaN without windows. The fp64 sums of
/// micro-batches are added in the order of the windows, so that the bits do not depend on the rank count. Changes no
/// state. Collective over the world.
double evaluate(Engine& engine, Batches& batches);

}  // namespace tessera
