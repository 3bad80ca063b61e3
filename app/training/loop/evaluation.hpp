#pragma once
#include <functional>
#include <optional>

#include "app/training/loop/batches.hpp"
#include "core/step/engine.hpp"

namespace tessera {

/// Whether an evaluation follows step `step` (from 1).
bool evaluation_due(const RunConfig& config, std::int64_t step);

/// Whether the run must end before more is done than a save; asked between passes. Collective over the world.
using Pressed = std::function<bool()>;

/// Mean cross-entropy (nats) over the targets of the evaluation windows; NaN without windows. Returns nothing if the
/// evaluation was abandoned because the run is `pressed` (null: it never is). The fp64 sums of micro-batches are added
/// in the order of the windows, so that the bits do not depend on the rank count. `chosen`, unless null, becomes
/// StepReport::chosen of the first pass. Changes no state. Collective over the world.
std::optional<double> evaluation_loss(Engine& engine, Batches& batches, const Pressed& pressed,
                                      std::vector<std::int32_t>* chosen = nullptr);

}  // namespace tessera
