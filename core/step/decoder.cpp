#include "core/step/decoder.hpp"

#include <algorithm>
#include <bit>

#include "core/params/tokens.hpp"

namespace tessera {

Decoder::Decoder(Device& device, const StepPlan& plan, Mesh& mesh)
    : device_(device),
      plan_(plan),
      mesh_(mesh),
      stream_(device.compute()),
      masters_(device, plan.layout, mesh.ranks()),
      sync_(device, plan.registry, plan.layout, plan.schedule, masters_, mesh, plan.sync),
      activations_(device.arena(Category::activations, plan.sizes.activation_bytes)),
      sequence_(plan.model.sequence(stream_, activations_, plan.sizes.length)),
      ids_(device.allocate(Category::batch, DType::i32, {most_at_once})),
      logits_(device.allocate(Category::batch, DType::f32, {plan.model.shape().vocabulary})) {
  require(mesh.ranks() == plan.ranks, "Decoder", "runs on the ranks that were planned for");
  for (const Workspace& place : plan.sizes.workspaces) stream_.workspace(place.purpose, place.bytes);
  const StateDict state = masters_.state(plan.registry, plan.layout, mesh.ranks());
  digests_ = device.allocate(Category::staging, DType::u64, {std::ssize(state.tensors)});
}

void Decoder::initialise(const std::function<void(StateDict&)>& fill) {
  Updated start = masters_.initialise(stream_, plan_.registry, plan_.layout, mesh_.ranks(), plan_.seed);
  StateDict state = masters_.state(plan_.registry, plan_.layout, mesh_.ranks());
  state.digests = digests_;
  fill(state);
  sync_.publish(stream_, std::move(start));
  sync_.unshard_all(stream_);
}

std::vector<float> Decoder::extend(std::span<const std::int32_t> ids) {
  require(!ids.empty() && length() + std::ssize(ids) <= capacity(), "Decoder::extend",
          "takes at least one token, and as many as the sequence has room for");
  const Pass pass{stream_, sync_, nullptr, activations_};
  while (!ids.empty()) {
    const std::size_t some = std::min<std::size_t>(most_at_once, std::bit_floor(ids.size()));
    const Tensor piece = ids_.flat(0, static_cast<std::int64_t>(some));
    device_.upload(stream_, piece, ids.data());
    plan_.model.extend(pass, sequence_, piece, some == ids.size() ? logits_ : Tensor{});
    ids = ids.subspan(some);
  }
  std::vector<float> values(static_cast<std::size_t>(logits_.elements()));
  device_.download(stream_, values.data(), logits_);
  return values;
}

}  // namespace tessera
