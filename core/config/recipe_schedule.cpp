#include "core/config/recipe_schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace tessera {
namespace {

std::string key_of_entry(std::size_t i) { return fmt::format("precision.schedule[{}]", i); }

/// Opens a key that is as the deck's first recipe derives it.
template <class T> void reopen(Derived<T>& key, const Derived<T>& derived) {
  if (key == derived) key = {};
}

/// The key of a segment's config as the deck writes it.
std::string key_in_deck(const RunConfig& config, std::size_t segment, const std::string& key) {
  constexpr std::string_view section = "precision.";
  const auto in_entry = [&](std::size_t i) { return key_of_entry(i) + "." + key.substr(section.size()); };
  if (key.starts_with("precision.recipe")) return in_entry(segment - 1);
  if (key.starts_with("precision.layers"))
    for (std::size_t i = segment; i-- > 0;)
      if (!config.precision.schedule[i].layers.empty()) return in_entry(i);
  return key;
}

bool same(const Finding& one, const Finding& other) { return one.keys == other.keys && one.text == other.text; }

}  // namespace

std::size_t segments(const RunConfig& config) { return config.precision.schedule.size() + 1; }

std::string schedule_text(const PrecisionConfig& precision) {
  std::string text;
  for (const ScheduledRecipe& entry : precision.schedule) {
    text += fmt::format(", from step {} on {}", entry.from_step, name_of(entry.recipe));
    if (!entry.layers.empty()) text += ", layers " + deck_text(entry.layers);
  }
  return text;
}

std::size_t segment_of(const RunConfig& config, std::int64_t step) {
  const std::vector<ScheduledRecipe>& entries = config.precision.schedule;
  const auto comes_later = [&](const ScheduledRecipe& one) {
    return one.from_step > step;  // mutation: recipe_changes_a_step_late
  };
  const auto later = std::ranges::find_if(entries, comes_later);
  return static_cast<std::size_t>(later - entries.begin());
}

std::int64_t last_step_of(const RunConfig& config, std::size_t segment) {
  const std::vector<ScheduledRecipe>& entries = config.precision.schedule;
  return segment < entries.size() ? std::min(config.run.steps, entries[segment].from_step - 1) : config.run.steps;
}

RunConfig config_of(const RunConfig& config, std::size_t segment) {
  RunConfig of = config;
  of.precision.schedule.clear();
  if (segment == 0) return of;
  RunConfig first = of;
  first.precision.primary_weights = {};
  first.proof.cuts = {};
  derive(first);
  reopen(of.precision.primary_weights, first.precision.primary_weights);  // mutation: key_of_the_first_recipe_stays
  reopen(of.proof.cuts, first.proof.cuts);
  for (std::size_t i = 0; i < segment; ++i) {
    const ScheduledRecipe& entry = config.precision.schedule[i];
    of.precision.recipe = entry.recipe;
    if (!entry.layers.empty()) of.precision.layers = entry.layers;
  }
  derive(of);
  return of;
}

RunConfig config_at(const RunConfig& config, std::int64_t step) { return config_of(config, segment_of(config, step)); }

std::vector<Finding> found_later(const RunConfig& config,
                                 const std::function<std::vector<Finding>(const RunConfig&)>& find) {
  if (segments(config) == 1) return {};
  std::vector<Finding> later;
  const std::vector<Finding> of_first = find(config_of(config, 0));
  for (std::size_t segment = 1; segment < segments(config); ++segment)
    for (Finding finding : find(config_of(config, segment))) {
      if (std::ranges::any_of(of_first, [&](const Finding& one) { return same(one, finding); })) continue;
      for (std::string& key : finding.keys) key = key_in_deck(config, segment, key);
      later.push_back(std::move(finding));
    }
  return later;
}

void check_schedule(const RunConfig& config, std::vector<Finding>& found) {
  const std::vector<ScheduledRecipe>& entries = config.precision.schedule;
  if (entries.empty()) return;
  for (std::size_t i = 1; i < entries.size(); ++i)
    if (entries[i].from_step <= entries[i - 1].from_step)
      found.push_back({{key_of_entry(i) + ".from_step", key_of_entry(i - 1) + ".from_step"},
                       fmt::format("is {}, and the change before it comes with step {}: each must come later than the "
                                   "one before", entries[i].from_step, entries[i - 1].from_step)});
  const std::vector<Finding> later = found_later(config, [](const RunConfig& segment) { return check(segment); });
  found.insert(found.end(), later.begin(), later.end());
}

}  // namespace tessera
