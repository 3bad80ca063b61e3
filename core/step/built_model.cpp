#include "core/step/built_model.hpp"

#include "core/params/tokens.hpp"

namespace tessera {
namespace {

/// Before anything is allocated.
const StepPlan& planned_for(const StepPlan& plan, const Ranks& ranks) {
  require(ranks == plan.ranks, "BuiltModel", "runs on the ranks that were planned for");
  return plan;
}

SharedMemory reached_by_peers(Device& device, const StepPlan& plan) {
  const auto& moe = plan.model.shape().moe;
  if (!moe || !moe->by_peers() || device.measuring()) return {};
  return device.shared(Category::activations, plan.sizes.activation_bytes);
}

Arena arena_of(Device& device, const SharedMemory& reached, std::int64_t bytes) {
  if (reached.bytes) return Arena(static_cast<std::byte*>(reached.bytes.data), bytes);
  return device.arena(Category::activations, bytes);
}

}  // namespace

BuiltModel::BuiltModel(Device& device, const StepPlan& plan, Mesh& mesh)
    : masters(device, planned_for(plan, mesh.ranks()).layout, plan.ranks),
      sync(device, plan.registry, plan.layout, plan.schedule, masters, mesh, plan.sync),
      reached(reached_by_peers(device, plan)),
      activations(arena_of(device, reached, plan.sizes.activation_bytes)),
      stream_(device.compute()),
      plan_(plan) {
  for (const Workspace& place : plan.sizes.workspaces) stream_.workspace(place.purpose, place.bytes);
}

StateDict BuiltModel::state(const Tensor& digests) const {
  StateDict state = masters.state(plan_.registry, plan_.layout, plan_.ranks);
  state.digests = digests;
  return state;
}

Updated BuiltModel::initialise(const Tensor& digests, const std::function<void(StateDict&)>& fill) {
  Updated start = masters.initialise(stream_, plan_.registry, plan_.layout, plan_.ranks, plan_.seed);
  StateDict drawn = state(digests);
  fill(drawn);
  return start;
}

}  // namespace tessera
