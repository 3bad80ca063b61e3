#pragma once
#include "core/config/config.hpp"
#include "core/device/device.hpp"
#include "core/step/step_plan.hpp"

/// Device memory of the deck's debug keys, in one place, so that a plan counts what a run will allocate.
namespace tessera {

/// Digests that debug.trace makes of every canonical tensor.
enum class Traced : std::uint8_t { gradient, master, weight, count };

/// u64 [Traced::count, tensors by canonical name].
Tensor trace_digests(Device& device, const StepPlan& plan);
/// u64, one a bucket: debug.replica_hash_every.
Tensor replica_digests(Device& device, const StepPlan& plan);

/// All that `debug` asks for.
void allocate_for_debug(Device& device, const StepPlan& plan, const DebugConfig& debug);

}  // namespace tessera
