#pragma once
#include "core/config/sections/debug.hpp"
#include "core/device/device.hpp"
#include "core/params/planes.hpp"
#include "core/step/step_plan.hpp"

/// Device memory for the deck's debug keys, allocated here only, so that a plan counts what a run will allocate.
namespace tessera {

/// Digests that debug.trace makes for every canonical tensor: of gradient and master, then of the weights' stored
/// arrays.
enum class Traced : std::uint8_t { gradient, master, weights };
constexpr std::int64_t digests_of_tensor = static_cast<std::int64_t>(Traced::weights) + std::int64_t{plane_kinds};

/// Memory of debug.trace: u64 [digests_of_tensor, tensors by canonical name].
Tensor trace_digests(Device& device, const StepPlan& plan);
/// Memory of debug.replica_hash_every: u64, one for each bucket.
Tensor replica_digests(Device& device, const StepPlan& plan);

/// Allocates all that `debug` asks for; for planning.
void allocate_for_debug(Device& device, const StepPlan& plan, const DebugConfig& debug);

}  // namespace tessera
