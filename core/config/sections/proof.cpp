#include "core/config/sections/proof.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/config/config.hpp"
#include "core/config/travel.hpp"
#include "core/config/treatments.hpp"

namespace tessera {
namespace {

Travel travel_of(const RunConfig& config, FormatId codes) {
  const WeightRules rules{.held = config.precision.primary_weights,
                          .wire = config.proof.wire,
                          .staging = config.proof.staging,
                          .sharding = config.sharding};
  return travel_of(codes, DType::bf16, rules);
}

/// A weight format whose codes are gathered and for which `which` holds, if there is one.
std::optional<FormatId> shipped(const RunConfig& config, bool (&which)(FormatId)) {
  for (const FormatId codes : coded_weights(config))
    if (travel_of(config, codes) == Travel::codes && which(codes)) return codes;
  return std::nullopt;
}

/// Contradictions that concern full sharding only.
void check_full_sharding(const ProofConfig& proof, const RunConfig& config, std::vector<Finding>& found) {
  if (config.precision.primary_weights == PrimaryWeights::quantized && proof.wire == GatherWire::bf16)
    found.push_back({{"proof.wire", "sharding", "precision.primary_weights"},
                     "is bf16, and full sharding gathers what it keeps, which is codes: use wire auto, primary_weights "
                     "bf16, or sharding optimizer"});
  if (proof.cuts == GatherCuts::flat && !coded_weights(config).empty())
    found.push_back({{"proof.cuts", "sharding"},
                     "is flat, and full sharding cuts what a recipe quantizes between rows of blocks: use cuts tile, "
                     "or sharding optimizer"});
}

}  // namespace

bool stages_values(const RunConfig& config) {
  return std::ranges::any_of(coded_weights(config),
                             [&](FormatId codes) { return travel_of(config, codes) == Travel::bf16; });
}

bool ships_both_copies(const RunConfig& config) { return shipped(config, copies_travel_apart).has_value(); }

void ProofConfig::derive(const RunConfig& config) {
  const bool full = config.sharding == Sharding::full && !coded_weights(config).empty();
  cuts.fill(full || shipped(config, blocks_have_one_owner) ? GatherCuts::tile : GatherCuts::flat);
}

void ProofConfig::settle_expert_rows(bool reached) {
  if (expert_rows != ExpertRows::automatic) return;
  expert_rows = reached && copy_engines && !share_gpu ? ExpertRows::peers : ExpertRows::exchange;
}

void ProofConfig::check(const RunConfig& config, std::vector<Finding>& found) const {
  const bool quantized = config.precision.primary_weights == PrimaryWeights::quantized;
  if (!quantized && wire == GatherWire::quantized)
    found.push_back({{"proof.wire", "precision.primary_weights"},
                     "is quantized, and weights that are held in bf16 have no codes that could travel: use wire auto, "
                     "or primary_weights quantized"});
  if (staging != GatherStaging::automatic && !stages_values(config))
    found.push_back({{"proof.staging", "proof.wire", "precision.primary_weights"},
                     fmt::format("is {}, and nothing is staged: only weights that are held quantized and travel as "
                                 "bf16 are; use auto",
                                 name_of(staging))});
  if (config.sharding == Sharding::full) return check_full_sharding(*this, config, found);
  if (const auto whole = shipped(config, blocks_have_one_owner); whole && cuts == GatherCuts::flat)
    found.push_back({{"proof.cuts", "proof.wire"},
                     fmt::format("is flat, and codes of {} travel by whole rows of blocks: use cuts tile, or wire bf16",
                                 traits_of(*whole).name)});
}

void ProofConfig::advise(const RunConfig& config, std::vector<Finding>& found) const {
  if (wire == GatherWire::bf16 && config.precision.primary_weights == PrimaryWeights::bf16)
    found.push_back({{"proof.wire", "precision.primary_weights"},
                     "weights that are held in bf16 travel in it anyway"});
}

std::span<const Effect> ProofConfig::effects() {
  static constexpr Effect rows[] = {
      {"proof.cuts", "precision.recipe", "on weights that the recipe quantizes",
       [](const RunConfig& c) { return !coded_weights(c).empty(); }},
      {"proof.expert_rows", "parallel.expert", "with parallel.expert above 1",
       [](const RunConfig& c) { return c.parallel.expert > 1; }},
  };
  return rows;
}

std::span<const OtherName> ProofConfig::other_names() {
  static constexpr OtherName rows[] = {
      {"cuda_graph enable_cuda_graph use_cuda_graph", "proof.graph", ""},
      {"overlap_grad_reduce", "proof.reduce_overlap", ""},
      {"overlap_param_gather", "proof.gather_overlap", ""},
  };
  return rows;
}

}  // namespace tessera
