#include "core/step/debug_memory.hpp"

namespace tessera {

Tensor trace_digests(Device& device, const StepPlan& plan) {
  const std::int64_t names = std::ssize(plan.registry.datasets());
  return device.allocate(Category::staging, DType::u64, {digests_of_tensor, names});
}

Tensor replica_digests(Device& device, const StepPlan& plan) {
  return device.allocate(Category::staging, DType::u64, {plan.layout.buckets().size()});
}

void allocate_for_debug(Device& device, const StepPlan& plan, const DebugConfig& debug) {
  if (!debug.trace.empty()) trace_digests(device, plan);
  if (debug.replica_hash_every > 0) replica_digests(device, plan);
}

}  // namespace tessera
