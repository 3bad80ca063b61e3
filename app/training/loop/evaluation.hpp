#pragma once
#include <functional>
#include <optional>
#include <vector>

#include "app/training/loop/batches.hpp"
#include "core/step/engine.hpp"

namespace tessera {

/// Whether an evaluation follows step `step` (from 1).
bool evaluation_due(const RunConfig& config, std::int64_t step);

/// Whether the run must end before more is done than a save; asked between passes. Collective over the world.
using Pressed = std::function<bool()>;

/// Mean cross-entropy (nats) over the targets of each evaluation set, with these weights; NaN for one without windows.
/// Returns nothing if the evaluation was abandoned because the run is `pressed` (null: it never is). The fp64 sums of
/// micro-batches are added in the order of the windows. So the bits depend neither on the rank count nor on other sets.
/// `chosen`, unless null, becomes StepReport::chosen of the first pass. Changes no state. Collective over the world.
std::optional<std::vector<double>> evaluation_losses(Engine& engine, Batches& batches, EvaluatedWeights weights,
                                                     const Pressed& pressed,
                                                     std::vector<std::int32_t>* chosen = nullptr);

}  // namespace tessera
