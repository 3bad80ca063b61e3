#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/config/treatments.hpp"
#include "kernels/formats/registry.hpp"

namespace tessera {
namespace {

/// The names of formats that a recipe gives.
void add_names(const RecipeConfig& recipe, std::set<std::string>& names) {
  for (const auto* slot : {&recipe.weight.forward, &recipe.weight.dgrad, &recipe.activation.forward,
                           &recipe.activation.wgrad, &recipe.gradient.dgrad, &recipe.gradient.wgrad})
    if (slot->known()) names.insert(slot->get().name);
}
void add_names(const std::vector<LayerRule>& layers, std::set<std::string>& names) {
  for (const LayerRule& rule : layers) add_names(rule.recipe, names);
}

}  // namespace

void check_formats(const NamedFormats& named, std::vector<Finding>& found) {
  const std::vector<std::string> taken = factor_formats();
  for (const auto& [name, format] : named) {
    const std::string key = "precision.formats." + name;
    if (find_format(name) || std::ranges::find(taken, name) != taken.end())
      found.push_back({{key}, "is the name of a format that there is: choose another"});
    const formats::Description description = description_of(format);
    if (const auto flaw = formats::flaw_of(description)) {
      found.push_back({{fmt::format("{}.{}", key, flaw->part), key}, flaw->text});
      continue;
    }
    const formats::Columnwise columns = formats::Described(description).columnwise();
    if (format.columns.known() && format.columns.get() != columns)
      found.push_back({{key + ".columns", key + ".block"},
                       fmt::format("is {}, and a block of {} {}: use {}, or leave columns out",
                                   name_of(format.columns.get()), deck_text(format.block),
                                   columns == formats::Columnwise::shared
                                       ? "is one of columns too, so that both copies are one"
                                       : "runs along rows, so that columns have blocks of their own",
                                   name_of(columns))});
  }
}

void advise_formats(const PrecisionConfig& precision, std::vector<Finding>& found) {
  std::set<std::string> used;
  add_names(precision.recipe, used);
  add_names(precision.layers, used);
  for (const ScheduledRecipe& entry : precision.schedule) {
    add_names(entry.recipe, used);
    add_names(entry.layers, used);
  }
  const auto is_used = [&](const auto& one) { return used.contains(one.first); };
  if (!precision.formats.empty() && std::ranges::none_of(precision.formats, is_used))
    found.push_back({{"precision.formats"}, "has no effect: no recipe of this deck names one of them"});
}

}  // namespace tessera
