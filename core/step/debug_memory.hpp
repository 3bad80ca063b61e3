#pragma once
#include "core/config/config.hpp"
#include "core/device/device.hpp"
#include "core/params/planes.hpp"
#include "core/step/step_plan.hpp"

/// Device memory of the deck's debug keys, in one place, so that a plan counts what a run will allocate.
namespace tessera {

/// Digests that debug.trace makes of every canonical tensor: those named, then those of the stored arrays of weights.
enum class Traced : std::uint8_t { gradient, master, weights };
constexpr std::int64_t digests_of_tensor = static_cast<std::int64_t>(Traced::weights) + std::int64_t{plane_kinds};

/// u64 [digests_of_tensor, tensors by canonical name].
Tensor trace_digests(Device& device, const StepPlan& plan);
/// u64, one a bucket: debug.replica_hash_every.
Tensor replica_digests(Device& device, const StepPlan& plan);

/// All that `debug` asks for.
void allocate_for_debug(Device& device, const StepPlan& plan, const DebugConfig& debug);

}  // namespace tessera
