#include "core/state/state_dict.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "kernels/digest/digest.hpp"

namespace tessera {
namespace {

/// Index of a parameter whose dataset is not in the slot.
constexpr std::size_t none = static_cast<std::size_t>(-1);

/// Appends the canonical tensors of the datasets whose parameters are `covered`. Returns each parameter's tensor index.
template <class Covered>
IndexedBy<ParamId, std::size_t> add_names(std::vector<StateTensor>& tensors, const std::string& slot, DType type,
                                          const ParamRegistry& registry, const Covered& covered) {
  IndexedBy<ParamId, std::size_t> tensor_of(registry.size(), none);
  for (const Dataset& dataset : registry.datasets()) {
    bool known = false;
    for (ParamId param : dataset.params) {
      if (!covered(param)) continue;
      tensor_of[param] = known ? tensors.size() - 1 : tensors.size();
      if (std::exchange(known, true)) continue;
      const ParamSpec& spec = registry[param];
      tensors.push_back({slot, spec.canonical.name, spec.canonical.shape, type, spec.role, {}, spec.tied_to});
    }
  }
  return tensor_of;
}

}  // namespace

std::uint64_t RuleCounter::bits() const {
  return std::visit([](auto held) { return std::bit_cast<std::uint64_t>(held); }, value);
}

RuleCounter RuleCounter::with_bits(std::uint64_t bits) const {
  RuleCounter other = *this;
  std::visit([bits](auto& held) { held = std::bit_cast<std::remove_reference_t<decltype(held)>>(bits); }, other.value);
  return other;
}

void StateDict::add(const StateSlot& slot, const ParamRegistry& registry, const ParamLayout& layout,
                    const Ranks& ranks) {
  const auto covered = [&](ParamId param) {
    return std::ranges::find(slot.slices, layout.placement(param).bucket, &BucketSlice::bucket) != slot.slices.end();
  };
  const IndexedBy<ParamId, std::size_t> tensor_of = add_names(tensors, slot.name, slot.type(), registry, covered);
  for (const BucketSlice& slice : slot.slices)
    for (const ShardRange& piece : layout.shard_ranges(slice.bucket, ranks))
      if (piece.real.value > 0)  // else the piece is vocabulary padding
        tensors[tensor_of[piece.param]].ranges.push_back(
            {piece.canonical.value, slice.values.flat(piece.shard.value, piece.real.value)});
  for (StateTensor& tensor : tensors) std::ranges::sort(tensor.ranges, {}, &StateRange::first);
}

void StateDict::add(const std::string& slot, const ParamRegistry& registry) {
  add_names(tensors, slot, DType::f32, registry, [](ParamId) { return true; });
}

std::string StateCounters::norm_path(std::size_t i) {
  const std::string digits = std::to_string(1000 + i);
  return std::string(norm_prefix) + digits.substr(digits.size() - 3);
}

std::uint64_t scalar_digest(std::uint64_t bits) { return mix64(bits ^ 0x9E3779B97F4A7C15u); }

void ContentDigest::add(const std::string& path, std::uint64_t digest) { sum_ += mix64(fnv1a64(path) ^ digest); }

void ContentDigest::add(const StateCounters& counters) {
  StateCounters::visit(counters, [this](const char* path, auto value) {
    add(path, scalar_digest(std::bit_cast<std::uint64_t>(value)));
  });
}

}  // namespace tessera
