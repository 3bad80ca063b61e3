#pragma once
#include <set>
#include <string>
#include <vector>

#include "core/config/config.hpp"
#include "core/config/effects.hpp"
#include "core/config/values.hpp"

/// A small config that contradicts nothing, and what is said of configs made from it.
namespace tessera::test {

using List = std::vector<std::string>;

inline RunConfig sound() {
  RunConfig config;
  config.run.steps = 100;
  config.model.layers = 2;
  config.model.hidden = 96;
  config.model.heads = 6;
  config.model.seq_len = 32;
  config.data.files = {"*.txt"};
  config.batch.global = 8;
  config.batch.micro = 2;
  return config;
}

inline RunConfig with_experts(std::int64_t experts, std::int64_t top_k) {
  RunConfig config = sound();
  MoeConfig& moe = config.model.moe.emplace();
  moe.experts = experts;
  moe.top_k = top_k;
  return config;
}

/// A sound config of this recipe with weights held like this.
inline RunConfig holding(RecipeName recipe, PrimaryWeights held, GatherWire wire = GatherWire::automatic) {
  RunConfig config = sound();
  config.precision.recipe = recipe;
  config.precision.primary_weights = held;
  config.proof.wire = wire;
  return config;
}

inline RunConfig derived(RunConfig config) {
  derive(config);
  return config;
}

inline List texts(const std::vector<Finding>& findings) {
  List list;
  for (const Finding& finding : findings) list.push_back(finding.keys.front() + ": " + finding.text);
  return list;
}

inline List contradictions(const RunConfig& config) { return texts(check(derived(config))); }

/// Advice on a deck that gives every key whose value is no default.
inline List advice(const RunConfig& config) {
  std::set<std::string> given;
  RunConfig standard;
  if (config.model.moe) standard.model.moe = MoeConfig{};
  const auto defaults = values_of(standard);
  for (const auto& [key, value] : values_of(config))
    if (!defaults.contains(key) || defaults.at(key) != value) given.insert(key);
  const RunConfig whole = derived(config);
  List list = texts(advise(whole));
  for (std::string& text : texts(without_effect(whole, given))) list.push_back(std::move(text));
  return list;
}

}  // namespace tessera::test
