#include "core/state/state_dict.hpp"

#include <algorithm>
#include <bit>

#include "kernels/digest/digest.hpp"

namespace tessera {

void StateDict::add(const std::string& slot, const ParamRegistry& registry, const ParamLayout& layout,
                    const Ranks& ranks, std::span<const Tensor> shards) {
  std::vector<std::size_t> tensor_of;  // by ParamId
  for (const ParamSpec& spec : registry.specs()) {
    // The experts of a discrete projection are registered one after another.
    const bool known = !tensor_of.empty() && tensors.back().name == spec.canonical.name;
    if (!known)
      tensors.push_back({slot, spec.canonical.name, spec.canonical.shape, DType::f32, spec.role, {}, spec.tied_to});
    tensor_of.push_back(tensors.size() - 1);
  }
  for (std::size_t b = 0; b < shards.size(); ++b)
    for (const Piece& piece : layout.pieces({static_cast<int>(b)}, ranks)) {
      const ParamSpec& spec = registry[piece.param];
      const std::int64_t real = std::min(spec.real_elements() - piece.begin.value, piece.count.value);
      if (real <= 0) continue;  // vocabulary padding
      const std::int64_t first = spec.canonical.first + piece.member * spec.member_elements() + piece.begin.value;
      tensors[tensor_of[static_cast<std::size_t>(piece.param.value)]].ranges.push_back(
          {first, shards[b].flat(piece.shard.value, real)});
    }
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
