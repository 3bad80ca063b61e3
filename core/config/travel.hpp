#pragma once
#include <cstdint>
#include <optional>

#include "core/config/choices.hpp"
#include "kernels/base/dtype.hpp"
#include "kernels/formats/registry.hpp"

namespace tessera {

/// How weights are sharded, and how quantized ones are held and travel. Changes memory and bytes sent, never the values
/// that a product reads.
struct WeightRules {
  PrimaryWeights held = PrimaryWeights::bf16;
  GatherWire wire = GatherWire::automatic;
  GatherStaging staging = GatherStaging::automatic;
  Sharding sharding = Sharding::optimizer;
};

/// How the weights of one format are held, and what the all-gather sends.
enum class Travel : std::uint8_t {
  plain,  ///< held in the plain type, which travels
  codes,  ///< held as codes, which travel: quantized by the owners
  bf16,   ///< held as codes; their bf16 travels, and every rank quantizes it
};

/// Bytes of an element in one copy of a format's codes, scales included.
double copy_bytes(FormatId codes);
/// Whether both copies travel where codes do, since neither can be derived from the other.
bool copies_travel_apart(FormatId codes);
/// Whether each block must lie in one rank's shard, where codes are gathered. So it is where both copies are gathered,
/// or where the quantization error of a whole block chooses its scale.
bool blocks_have_one_owner(FormatId codes);

/// What travels of weights with these codes (empty: none) and this plain type: the only place that decides it. Under
/// full sharding weights travel as they are held; otherwise as proof.wire says, where `auto` takes the fewer bytes,
/// scales and both copies counted.
Travel travel_of(std::optional<FormatId> codes, DType plain, const WeightRules& rules);

}  // namespace tessera
