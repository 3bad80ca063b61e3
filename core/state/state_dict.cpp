#include "core/state/state_dict.hpp"

#include <algorithm>
#include <bit>

#include "kernels/digest/digest.hpp"

namespace tessera {

void StateDict::add(const std::string& slot, const ParamRegistry& registry, const ParamLayout& layout,
                    const Ranks& ranks, std::span<const Tensor> shards) {
  IndexedBy<ParamId, std::size_t> tensor_of(registry.size());
  for (const Dataset& dataset : registry.datasets()) {
    const ParamSpec& spec = registry[dataset.params.front()];
    for (ParamId param : dataset.params) tensor_of[param] = tensors.size();
    tensors.push_back({slot, spec.canonical.name, spec.canonical.shape, DType::f32, spec.role, {}, spec.tied_to});
  }
  for (std::size_t b = 0; b < shards.size(); ++b)
    for (const Piece& piece : layout.pieces({static_cast<int>(b)}, ranks))
      if (piece.real.value > 0)  // else vocabulary padding
        tensors[tensor_of[piece.param]].ranges.push_back(
            {piece.canonical.value, shards[b].flat(piece.shard.value, piece.real.value)});
  for (StateTensor& tensor : tensors) std::ranges::sort(tensor.ranges, {}, &StateRange::first);
}

std::uint64_t scalar_digest(std::uint64_t bits) { return mix64(bits ^ 0x9E3779B97F4A7C15u); }

void ContentDigest::add(const std::string& path, std::uint64_t digest) { sum_ += mix64(fnv1a64(path) ^ digest); }

void ContentDigest::add(const StateCounters& counters) {
  StateCounters::visit(counters, [this](const char* path, auto value) {
    add(path, scalar_digest(std::bit_cast<std::uint64_t>(value)));
  });
}

}  // namespace tessera
