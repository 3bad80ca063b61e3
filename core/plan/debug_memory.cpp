#include "core/plan/debug_memory.hpp"

namespace tessera {

Tensor trace_digests(Device& device, const RunPlan& plan) {
  std::int64_t names = 0;
  const std::string* last = nullptr;
  for (const ParamSpec& spec : plan.registry.specs()) {
    names += !last || *last != spec.canonical.name;
    last = &spec.canonical.name;
  }
  return device.allocate(Category::staging, DType::u64, {static_cast<std::int64_t>(Traced::count), names});
}

Tensor replica_digests(Device& device, const RunPlan& plan) {
  return device.allocate(Category::staging, DType::u64, {std::ssize(plan.layout.buckets())});
}

void allocate_for_debug(Device& device, const RunPlan& plan) {
  if (!plan.config.debug.trace.empty()) trace_digests(device, plan);
  if (plan.config.debug.replica_hash_every > 0) replica_digests(device, plan);
}

}  // namespace tessera
