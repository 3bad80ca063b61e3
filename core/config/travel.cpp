#include "core/config/travel.hpp"

namespace tessera {

double copy_bytes(FormatId codes) {
  const FormatTraits format = traits_of(codes);
  const auto block = static_cast<double>(format.block.rows * format.block.columns);
  return format.bits / 8.0 + (format.scaled ? format.scale_bytes / block : 0);
}

bool copies_travel_apart(FormatId codes) {
  return traits_of(codes).columnwise == formats::Columnwise::requantized;
}

bool blocks_have_one_owner(FormatId codes) { return copies_travel_apart(codes) || traits_of(codes).chooses; }

Travel travel_of(std::optional<FormatId> codes, DType plain, const WeightRules& rules) {
  if (!codes || rules.held == PrimaryWeights::bf16) return Travel::plain;
  if (rules.sharding == Sharding::full || rules.wire == GatherWire::quantized) return Travel::codes;
  if (rules.wire == GatherWire::bf16) return Travel::bf16;
  const double bytes = (copies_travel_apart(*codes) ? 2 : 1) * copy_bytes(*codes);
  return bytes < static_cast<double>(size_of(plain)) ? Travel::codes : Travel::bf16;
}

}  // namespace tessera
