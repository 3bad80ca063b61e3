#pragma once
#include "core/plan/plan.hpp"

/// Device memory of the deck's debug keys: here, so that a plan counts what a run will allocate.
namespace tessera {

/// Digests that debug.trace makes of every canonical tensor.
enum class Traced : std::uint8_t { gradient, master, weight, count };

/// u64 [Traced::count, tensors by canonical name].
Tensor trace_digests(Device& device, const RunPlan& plan);
/// u64, one a bucket: debug.replica_hash_every.
Tensor replica_digests(Device& device, const RunPlan& plan);

/// All that the plan's keys ask for.
void allocate_for_debug(Device& device, const RunPlan& plan);

}  // namespace tessera
