#include "core/config/recipe_schedule.hpp"

#include <gtest/gtest.h>

namespace tessera {
namespace {

RunConfig scheduled(RecipeName first, std::vector<ScheduledRecipe> later) {
  RunConfig config;
  config.run.steps = 20;
  config.model.layers = 4;
  config.precision.recipe = first;
  config.precision.schedule = std::move(later);
  derive(config);
  return config;
}

TEST(RecipeSchedule, AStepIsOfTheLastChangeThatHasCome) {
  const RunConfig config = scheduled(RecipeName::bf16, {{5, RecipeName::nvfp4, {}}, {6, RecipeName::mxfp8, {}}});
  EXPECT_EQ(segments(config), 3U);
  const std::size_t wanted[] = {0, 0, 0, 0, 0, 1, 2, 2};  // of steps 0 to 7
  for (std::int64_t step = 0; step < std::ssize(wanted); ++step)
    EXPECT_EQ(segment_of(config, step), wanted[step]) << step;
  EXPECT_EQ(last_step_of(config, 0), 4);
  EXPECT_EQ(last_step_of(config, 1), 5);
  EXPECT_EQ(last_step_of(config, 2), 20);
  EXPECT_EQ(config_at(config, 5).precision.recipe, RecipeConfig(RecipeName::nvfp4));
  EXPECT_TRUE(config_at(config, 5).precision.schedule.empty());
}

TEST(RecipeSchedule, AChangeThatNeverComesEndsNothingLater) {
  const RunConfig config = scheduled(RecipeName::bf16, {{30, RecipeName::nvfp4, {}}});
  EXPECT_EQ(last_step_of(config, 0), 20);
  std::vector<Finding> found;
  config.precision.advise(config, found);
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found.back().keys.front(), "precision.schedule[0].from_step");
}

TEST(RecipeSchedule, WhatTheFirstRecipeDerivesIsDerivedAnew) {
  RunConfig config = scheduled(RecipeName::bf16, {{5, RecipeName::nvfp4, {}}});
  EXPECT_EQ(config_of(config, 0).precision.primary_weights.get(), PrimaryWeights::bf16);
  EXPECT_EQ(config_of(config, 1).precision.primary_weights.get(), PrimaryWeights::quantized);
  config = scheduled(RecipeName::nvfp4, {{5, RecipeName::bf16, {}}, {6, RecipeName::mxfp8, {}}});
  EXPECT_EQ(config_of(config, 1).precision.primary_weights.get(), PrimaryWeights::bf16);
  EXPECT_EQ(config_of(config, 2).precision.primary_weights.get(), PrimaryWeights::quantized);
  config.precision.primary_weights = PrimaryWeights::bf16;  // the deck's word
  EXPECT_EQ(config_of(config, 2).precision.primary_weights.get(), PrimaryWeights::bf16);
  config.proof.cuts = GatherCuts::tile;
  EXPECT_EQ(config_of(config, 2).proof.cuts.get(), GatherCuts::tile);
}

TEST(RecipeSchedule, RulesForLayersStayUntilOthersCome) {
  const LayerRule rule{{"first 1"}, {}, RecipeName::bf16}, other{{"last 1"}, {}, RecipeName::mxfp8};
  RunConfig config = scheduled(RecipeName::nvfp4, {{5, RecipeName::mxfp8, {}}, {6, RecipeName::nvfp4, {other}}});
  config.precision.layers = {rule};
  EXPECT_EQ(config_of(config, 1).precision.layers, std::vector{rule});
  EXPECT_EQ(config_of(config, 2).precision.layers, std::vector{other});
}

/// The first keys of all that is found, in order.
std::vector<std::string> found_in(const RunConfig& config) {
  std::vector<Finding> found;
  check_schedule(config, found);
  std::vector<std::string> keys;
  for (const Finding& one : found) keys.push_back(one.keys.front());
  return keys;
}

TEST(RecipeSchedule, FindingsNameTheEntryThatTheyAreOf) {
  const LayerRule nowhere{{"9"}, {}, RecipeName::bf16};
  RecipeConfig unfit(RecipeName::nvfp4);
  unfit.weight.forward = "nvfp4_1d";
  using Keys = std::vector<std::string>;
  EXPECT_EQ(found_in(scheduled(RecipeName::bf16, {{5, RecipeName::nvfp4, {}}, {9, RecipeName::mxfp8, {}}})), Keys{});
  EXPECT_EQ(found_in(scheduled(RecipeName::bf16, {{5, RecipeName::nvfp4, {}}, {5, RecipeName::mxfp8, {}}})),
            Keys{"precision.schedule[1].from_step"});
  EXPECT_EQ(found_in(scheduled(RecipeName::bf16, {{5, unfit, {}}})),
            Keys{"precision.schedule[0].recipe.weight.forward"});
  // The rules of the first entry are those of the second too, and are refused once for each.
  EXPECT_EQ(found_in(scheduled(RecipeName::bf16, {{5, RecipeName::nvfp4, {nowhere}}, {6, RecipeName::mxfp8, {}}})),
            (Keys{"precision.schedule[0].layers[0].blocks", "precision.schedule[0].layers[0].blocks"}));
}

}  // namespace
}  // namespace tessera
