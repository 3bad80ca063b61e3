#include "core/config/sections/recompute.hpp"

#include <algorithm>

#include "core/config/config.hpp"
#include "core/config/treatments.hpp"

namespace tessera {

void RecomputeConfig::derive(const RunConfig&) {
  using Modules = std::vector<RecomputeModule>;
  modules.fill(mode == RecomputeMode::selective ? Modules{RecomputeModule::attention} : Modules{});
}

void RecomputeConfig::check(const RunConfig&, std::vector<Finding>& found) const {
  if (mode == RecomputeMode::selective && modules.get().empty())
    found.push_back({{"recompute.modules", "recompute.mode"}, "mode selective needs at least one module"});
}

namespace {

/// Whether the model has any of the modules that the deck lists.
bool has_a_module(const RunConfig& c) {
  const std::int64_t mixtures = c.model.moe ? c.model.moe->blocks().among(c.model.layers) : 0;
  return std::ranges::any_of(c.recompute.modules.get(), [&](RecomputeModule module) {
    if (module == RecomputeModule::moe) return mixtures > 0;
    return module != RecomputeModule::mlp || mixtures < c.model.layers;
  });
}

}  // namespace

std::span<const Effect> RecomputeConfig::effects() {
  static constexpr Effect rows[] = {
      {"recompute.modules", "recompute.mode", "with mode selective",
       [](const RunConfig& c) { return c.recompute.mode == RecomputeMode::selective; }},
      {"recompute.modules", "model.moe", "where the model has one of the modules listed", has_a_module},
      {"recompute.modules", "precision.recipe", "with a recipe that quantizes where it lists codes",
       [](const RunConfig& c) {
         return quantizes(c) || std::ranges::count(c.recompute.modules.get(), RecomputeModule::codes) == 0;
       }},
      {"recompute.modules", "model.activation",
       "with swiglu, experts or a recipe that quantizes where it lists activation", [](const RunConfig& c) {
         return c.model.activation == Activation::swiglu || c.model.moe || quantizes(c) ||
                std::ranges::count(c.recompute.modules.get(), RecomputeModule::activation) == 0;
       }},
  };
  return rows;
}

std::span<const OtherName> RecomputeConfig::other_names() {
  static constexpr OtherName rows[] = {
      {"gradient_checkpointing activation_checkpointing activation_checkpoint recompute_granularity recompute_method "
       "use_gradient_checkpointing checkpoint_activations recompute_activations activation_recompute",
       "recompute.mode", "none | selective | full"},
      {"recompute_modules recompute_layers", "recompute.modules", ""},
  };
  return rows;
}

}  // namespace tessera
