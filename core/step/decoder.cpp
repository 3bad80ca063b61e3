#include "core/step/decoder.hpp"

#include <algorithm>
#include <bit>

#include "core/params/tokens.hpp"

namespace tessera {

Decoder::Decoder(Device& device, const StepPlan& plan, Mesh& mesh)
    : device_(device),
      plan_(plan),
      stream_(device.compute()),
      built_(device, plan, mesh),
      sequence_(plan.model.sequence(stream_, built_.activations, plan.sizes.length)),
      ids_(device.allocate(Category::batch, DType::i32, {most_at_once})),
      logits_(device.allocate(Category::batch, DType::f32, {plan.model.shape().vocabulary})) {
  digests_ = device.allocate(Category::staging, DType::u64, {std::ssize(built_.state({}).tensors)});
}

void Decoder::initialise(const std::function<void(StateDict&)>& fill) {
  built_.sync.publish(stream_, built_.initialise(digests_, fill));
  built_.sync.unshard_all(stream_);
}

std::vector<float> Decoder::extend(std::span<const std::int32_t> ids) {
  require(!ids.empty() && length() + std::ssize(ids) <= capacity(), "Decoder::extend",
          "takes at least one token, and as many as the sequence has room for");
  const Pass pass{stream_, built_.sync, nullptr, built_.activations};
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
