#pragma once
#include <filesystem>
#include <vector>

#include "core/device/device.hpp"
#include "core/plan/library_plans.hpp"
#include "core/plan/plan.hpp"

namespace tessera {

/// Has the libraries of `device` work by the same plans on all ranks: those that the first of `beginnings` (checkpoints
/// to go on from) was saved with, where they hold here, else new ones; rank 0 says where they did not. Before the first
/// kernel. Collective.
AgreedPlans use_library_plans(Device& device, const RunPlan& plan, const std::vector<std::filesystem::path>& beginnings,
                              Control& control);

}  // namespace tessera
