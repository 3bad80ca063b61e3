#include "core/config/sections/precision.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/config/config.hpp"
#include "core/config/recipe_schedule.hpp"
#include "core/config/treatments.hpp"

namespace tessera {
namespace {

bool asks_for_formats(const RunConfig& c) {
  return !c.precision.layers.empty() || c.precision.recipe != RecipeConfig(RecipeName::bf16);
}

/// Whether any matrix's gradients are rounded at random.
bool draws(const RunConfig& c) {
  const TreatmentRules rules = treatment_rules(c);
  return std::ranges::any_of(ruled_matrices(c.model),
                             [&](const RuledMatrix& m) { return rules.of(m.block, m.part).draws; });
}

}  // namespace

std::string no_codes_text(const RunConfig& config, const std::string& key) {
  if (!quantizes(config)) return "recipe bf16 quantizes no weight: leave " + key + " out, or choose another recipe";
  return "no weight is held as codes, since none has one format for both of its products: leave " + key +
         " out, or give weights one format";
}

void PrecisionConfig::derive(const RunConfig& config) {
  primary_weights.fill(coded_weights(config).empty() ? PrimaryWeights::bf16 : PrimaryWeights::quantized);
  seed.fill(config.run.seed);
}

void PrecisionConfig::check(const RunConfig& config, std::vector<Finding>& found) const {
  check_formats(formats, found);
  check_treatments(config, found);
  check_schedule(config, found);
  if (primary_weights == PrimaryWeights::quantized && coded_weights(config).empty())
    found.push_back({{"precision.primary_weights", "precision.recipe"}, no_codes_text(config, "primary_weights")});
  if (quantize_head && config.model.tied_head)
    found.push_back({{"precision.quantize_head", "model.tied_head"},
                     "a tied head is the token embedding, which stays in bf16: use tied_head false, or leave it out"});
  if (bf16_first + bf16_last > config.model.layers)
    found.push_back({{"precision.bf16_first", "precision.bf16_last", "model.layers"},
                     fmt::format("{} first and {} last blocks are more than the {} there are", bf16_first, bf16_last,
                                 config.model.layers)});
}

void PrecisionConfig::advise(const RunConfig& config, std::vector<Finding>& found) const {
  advise_treatments(config, found);
  advise_formats(*this, found);
  for (std::size_t i = 0; i < schedule.size(); ++i)
    if (schedule[i].from_step > config.run.steps)
      found.push_back({{fmt::format("precision.schedule[{}].from_step", i), "run.steps"},
                       fmt::format("is {}, and the run ends with step {}: the change never comes",
                                   schedule[i].from_step, config.run.steps)});
}

std::span<const Effect> PrecisionConfig::effects() {
  static constexpr Effect rows[] = {
      {"precision.quantize_head", "precision.recipe", "with a recipe other than bf16",
       [](const RunConfig& c) { return c.precision.recipe != RecipeConfig(RecipeName::bf16); }},
      {"precision.bf16_first", "precision.recipe", "with a recipe other than bf16", asks_for_formats},
      {"precision.bf16_last", "precision.recipe", "with a recipe other than bf16", asks_for_formats},
      {"precision.recipe", "precision.bf16_first", "on blocks that bf16_first, bf16_last and layers leave to it",
       [](const RunConfig& c) { return c.precision.recipe == RecipeName::bf16 || recipe_decides(c); }},
      {"precision.statistics_every", "precision.recipe", "with a recipe that quantizes", quantizes},
      {"precision.seed", "precision.recipe", "with a recipe that rounds stochastically, as nvfp4 does", draws},
  };
  return rows;
}

std::span<const OtherName> PrecisionConfig::other_names() {
  static constexpr OtherName rows[] = {
      {"mixed_precision mixed_precision_param dtype param_dtype torch_dtype amp bf16 fp32", "precision.compute",
       "bf16 | fp32; masters are fp32"},
      {"fp8 float8 mx fp8_recipe fp8_format quantization fp4 nvfp4 mxfp8", "precision.recipe", ""},
      {"fp16 loss_scale initial_loss_scale grad_scaler", "precision.compute",
       "bf16 | fp32: no fp16, and so no loss scale"},
      {"gradient_accumulation_fusion", "precision.fuse_wgrad", ""},
  };
  return rows;
}

}  // namespace tessera
