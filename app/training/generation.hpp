#pragma once
#include <functional>
#include <string>
#include <vector>

#include "core/step/engine.hpp"

namespace tessera {

/// Draws `count` tokens that continue `prompt`, one at a time from the model's distribution at temperature 0.8, with
/// random numbers of (seed, "sample"). Calls `sink` with each, the same on every rank. Collective over the world.
void generate(Engine& engine, const StepPlan& plan, std::vector<std::int32_t> prompt, std::int64_t count,
              const std::function<void(std::int32_t)>& sink);

}  // namespace tessera
