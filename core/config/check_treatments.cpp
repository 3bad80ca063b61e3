#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/config/keys.hpp"
#include "core/config/treatments.hpp"
#include "kernels/formats/registry.hpp"

namespace tessera {
namespace {

using Findings = std::vector<Finding>;

/// Formats that weights do not have, with what to use.
struct Unfit {
  std::string_view format;
  const char* instead;
};
constexpr Unfit unfit_for_weights[] = {
    {"fp8_block_1d", "has blocks of rows, which are for activations and gradients: use fp8_block"},
    {"nvfp4_1d", "has blocks of rows, which are for activations and gradients: use nvfp4"},
    {"nvfp4_46_1d", "has blocks of rows, which are for activations and gradients: use nvfp4_46"},
    {"nvfp4_row", "has scales of rows, which are for activations and gradients: use nvfp4"},
    {"fp8_tensor_e5m2", "is E5M2, whose range is for gradients: use fp8_tensor"},
    {"mxfp8_e5m2", "is E5M2, whose range is for gradients: use mxfp8 or mxfp8_2d"},
};

/// The format of one factor, or of two that a word gives.
struct GivenFormat {
  std::string key, first;  ///< what gives it, and the first key that it is for
  const Derived<FactorFormat>& format;
  bool of_weight;
};

void check_slot(const GivenFormat& slot, const NamedFormats& described, Findings& found) {
  const std::string& name = slot.format.get().name;
  for (const Unfit& unfit : unfit_for_weights)
    if (slot.of_weight && name == unfit.format)
      found.push_back({{slot.first}, fmt::format("{} {}", unfit.format, unfit.instead)});
  std::vector<std::string> known = factor_formats();
  if (std::ranges::find(known, name) != known.end()) return;
  const auto own = described.find(name);
  if (own == described.end()) {
    for (const auto& one : described) known.push_back(one.first);
    const std::string nearest = nearest_word(name, known);
    found.push_back({{slot.key, "precision.formats"},
                     fmt::format("{} is none of the choices, allowed {}{}", name, fmt::join(known, " | "),
                                 nearest.empty() ? "" : ", did you mean " + nearest + "?")});
    return;
  }
  const formats::Description d = description_of(own->second);
  if (slot.of_weight && d.scale == formats::ScaleKind::e4m3 && d.block.rows == 1)
    found.push_back({{slot.key, fmt::format("precision.formats.{}.block", name)},
                     fmt::format("{} has blocks of rows under a scale of the matrix, which are for activations and "
                                 "gradients: describe one with square blocks for weights",
                                 name)});
}

/// The slots that a recipe gives; two of one format that a deck may have written as a word are one.
void check_slots(const std::string& key, const RecipeConfig& recipe, const NamedFormats& described, Findings& found) {
  const auto pair = [&](const std::string& factor, const char* first, const Derived<FactorFormat>& one,
                        const char* second, const Derived<FactorFormat>& other, bool of_weight) {
    const bool word = one.known() && one == other;
    if (one.known()) check_slot({word ? factor : factor + first, factor + first, one, of_weight}, described, found);
    if (other.known() && !word) check_slot({factor + second, factor + second, other, of_weight}, described, found);
  };
  pair(key + ".weight", ".forward", recipe.weight.forward, ".dgrad", recipe.weight.dgrad, true);
  pair(key + ".activation", ".forward", recipe.activation.forward, ".wgrad", recipe.activation.wgrad, false);
  pair(key + ".gradient", ".dgrad", recipe.gradient.dgrad, ".wgrad", recipe.gradient.wgrad, false);
}

/// What is done to values besides quantizing them. `t` has it where it can be had.
void check_extras(const std::string& key, const RecipeConfig& recipe, const Treatment& t, Findings& found) {
  const auto refuse = [&](const char* below, const std::string& text) { found.push_back({{key + below}, text}); };
  if (recipe.rounding.weight == RoundingMode::stochastic)
    refuse(".rounding.weight", "is stochastic, and a stored weight is the nearest to its master, on all ranks: use "
                               "nearest");
  if (recipe.rounding.activation == RoundingMode::stochastic)
    refuse(".rounding.activation", "is stochastic, and evaluations would draw random numbers: use nearest; gradients "
                                   "can be rounded at random");
  const Derived<RoundingMode>& gradient = recipe.rounding.gradient;
  if (gradient.known() && gradient.get() == RoundingMode::stochastic && !t.draws)
    refuse(".rounding.gradient", fmt::format("is stochastic, and gradients are in {}: random rounding is that of "
                                             "nvfp4 and nvfp4_row; use one of these, or leave rounding out",
                                             text_of(t.gradient)));
  for (const auto& [asked, below] : {std::pair{recipe.hadamard.forward, ".hadamard.forward"},
                                     std::pair{recipe.hadamard.dgrad, ".hadamard.dgrad"}})
    if (asked)
      refuse(below, "is true, and a rotated weight is not the nearest to its master: only wgrad, whose factors are "
                    "activations and gradients, can be rotated");
  const Derived<bool>& wgrad = recipe.hadamard.wgrad;
  if (wgrad.known() && wgrad.get() && !t.rotates)
    refuse(".hadamard.wgrad", fmt::format("is true, and its product multiplies x in {} and dy in {}: both must be "
                                          "quantized by columns in nvfp4, nvfp4_row or nvfp4_46; leave hadamard out, "
                                          "or use one of these for each",
                                          text_of(Treatment::Activation{t.activation.wgrad, t.activation.wgrad}),
                                          text_of(Treatment::Gradient{t.gradient.wgrad, t.gradient.wgrad})));
}

void check_recipe(const std::string& key, const RecipeConfig& recipe, const Treatment& t,
                  const PrecisionConfig& precision, Findings& found) {
  check_slots(key, recipe, precision.formats, found);
  check_extras(key, recipe, t, found);
  if (t.quantizes() && precision.compute == Compute::fp32)
    found.push_back({{key, "precision.compute"},
                     fmt::format("{} quantizes bf16 values: use compute bf16, or recipe bf16", name_of(recipe))});
}

/// Refuses a rule that names no blocks, or no matrix of the model.
void check_rule(const RunConfig& config, const std::string& key, const LayerRule& asked, const TreatmentRule& rule,
                Findings& found) {
  const std::int64_t layers = config.model.layers;
  const std::size_t before = found.size();
  for (const std::string& text : asked.blocks)
    if (!blocks_named(text, layers))
      found.push_back({{key + ".blocks", "model.layers"},
                       fmt::format("\"{}\" names no blocks: first N, last N, A or A-B, of blocks 0 to {}", text,
                                   layers - 1)});
  if (found.size() > before || layers <= 0) return;
  const std::vector<RuledMatrix> matrices = ruled_matrices(config.model);
  const auto matches = [&](const RuledMatrix& one) { return rule.matches(one.block, one.part); };
  if (std::ranges::any_of(matrices, matches)) return;
  std::set<std::string_view> there;
  for (const RuledMatrix& one : matrices) there.insert(name_of(one.part));
  const bool head = std::ranges::find(rule.parts, MatrixName::head) != rule.parts.end();
  const std::string why =
      !head ? "" : config.model.tied_head ? ", and a tied head is the token embedding, which stays in bf16"
                                          : ", and the head is in no block: leave blocks out";
  found.push_back({{key, key + ".modules", key + ".blocks", "model.moe"},
                   fmt::format("matches no matrix{}: the model has {} in blocks 0 to {}; change the rule, or leave it "
                               "out",
                               why, fmt::join(there, ", "), layers - 1)});
}

std::string key_of_rule(std::size_t i) { return fmt::format("precision.layers[{}]", i); }

}  // namespace

void check_treatments(const RunConfig& config, Findings& found) {
  const PrecisionConfig& precision = config.precision;
  const TreatmentRules rules = treatment_rules(config);
  check_recipe("precision.recipe", precision.recipe, rules.standard, precision, found);
  for (std::size_t i = 0; i < precision.layers.size(); ++i) {
    const std::string key = key_of_rule(i);
    check_recipe(key + ".recipe", precision.layers[i].recipe, rules.list[i].treatment, precision, found);
    check_rule(config, key, precision.layers[i], rules.list[i], found);
  }
}

void advise_treatments(const RunConfig& config, Findings& found) {
  const TreatmentRules rules = treatment_rules(config);
  std::set<int> deciding;
  for (const auto& [block, part] : ruled_matrices(config.model)) deciding.insert(rules.decider(block, part));
  for (std::size_t i = 0; i < config.precision.layers.size(); ++i)
    if (!deciding.contains(static_cast<int>(i)))
      found.push_back({{key_of_rule(i)},
                       "decides nothing: rules behind it decide all of its matrices (the last one that matches does)"});
}

bool recipe_decides(const RunConfig& config) {
  const TreatmentRules rules = treatment_rules(config);
  return config.precision.quantize_head ||
         std::ranges::any_of(ruled_matrices(config.model), [&](const RuledMatrix& one) {
           return one.part != MatrixName::head && rules.decider(one.block, one.part) < 0;
         });
}

}  // namespace tessera
