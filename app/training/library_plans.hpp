#pragma once
#include <filesystem>
#include <vector>

#include "core/device/device.hpp"
#include "core/plan/library_plans.hpp"
#include "core/plan/plan.hpp"

namespace tessera {

/// Makes the libraries of `device` use the same plans on all ranks: those that the first of `beginnings` (checkpoints
/// to resume from) was saved with, where they hold here, else new ones; rank 0 says where not. Before the first
/// kernel. Collective.
AgreedPlans use_library_plans(Device& device, const RunPlan& plan, const std::vector<std::filesystem::path>& beginnings,
                              Control& control);

}  // namespace tessera
