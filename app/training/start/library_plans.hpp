#pragma once
#include <filesystem>
#include <vector>

#include "core/device/device.hpp"
#include "core/plan/library_plans.hpp"
#include "core/plan/plan.hpp"

namespace tessera {

/// Makes the libraries of `device` use the same plans on all ranks. They are those saved with the first of `beginnings`
/// (checkpoints to resume from), if these are valid here, else new ones, which rank 0 reports. Call it before the first
/// kernel. Collective over the world.
AgreedPlans use_library_plans(Device& device, const RunPlan& plan, const std::vector<std::filesystem::path>& beginnings,
                              Control& control);

}  // namespace tessera
