#include "core/config/treatments.hpp"

#include <gtest/gtest.h>

#include "core/recipe/recipe.hpp"
#include "kernels/formats/registry.hpp"

namespace tessera {
namespace {

using List = std::vector<std::string>;

RunConfig with(const RecipeConfig& recipe, const std::vector<LayerRule>& layers = {}) {
  RunConfig config;
  config.model.layers = 4;
  config.precision.recipe = recipe;
  config.precision.layers = layers;
  return config;
}
Treatment treatment_of(const RecipeConfig& recipe) { return treatment_rules(with(recipe)).standard; }

TEST(Treatments, NamesAreTheTablesRows) {
  for (const auto& [name, text] : Names<RecipeName>::table)
    EXPECT_EQ(treatment_of(name), recipe_named(text).treatment) << text;
  RunConfig fp32 = with({});
  fp32.precision.compute = Compute::fp32;
  EXPECT_EQ(treatment_rules(fp32).standard, recipe_named("fp32").treatment);
}

// A family's name means the variant for the factor; rounding and rotation go with nvfp4, where it is.
TEST(Treatments, SlotsTakeTheFactorsVariant) {
  using formats::id_of;
  RecipeConfig every;
  every.weight = {"nvfp4", "nvfp4"};
  every.activation = {"nvfp4", "nvfp4"};
  every.gradient = {"nvfp4", "nvfp4"};
  EXPECT_EQ(treatment_of(every), recipe_named("nvfp4").treatment);
  RecipeConfig recipe(RecipeName::nvfp4);
  recipe.activation.wgrad = "mxfp8_2d";
  const Treatment mixed = treatment_of(recipe);
  EXPECT_EQ(mixed.activation.wgrad, id_of<formats::Mxfp8>);
  EXPECT_TRUE(mixed.draws);
  EXPECT_FALSE(mixed.rotates) << "a rotated factor times one that is not";
  recipe = RecipeName::nvfp4;
  recipe.gradient.wgrad = "nvfp4_46";
  const Treatment beside = treatment_of(recipe);
  EXPECT_EQ(beside.gradient.wgrad, id_of<formats::Nvfp4FourOverSixOneD>);
  EXPECT_TRUE(beside.rotates && beside.draws) << "dy of dgrad is still rounded at random";
  recipe = RecipeName::nvfp4_46;
  EXPECT_EQ(treatment_of(recipe).weight.forward, id_of<formats::Nvfp4FourOverSix>);
  EXPECT_TRUE(treatment_of(recipe).rotates);
  EXPECT_FALSE(treatment_of(recipe).draws);
  recipe = RecipeName::nvfp4;
  recipe.activation = {"nvfp4_row", "nvfp4_row"};
  recipe.gradient = {"nvfp4_row", "nvfp4_row"};
  const Treatment rows = treatment_of(recipe);
  EXPECT_EQ(rows.weight.forward, id_of<formats::Nvfp4>);
  EXPECT_EQ(rows.activation.wgrad, id_of<formats::Nvfp4Row>);
  EXPECT_EQ(rows.gradient.dgrad, id_of<formats::Nvfp4Row>);
  EXPECT_TRUE(rows.rotates && rows.draws);
  recipe = RecipeName::nvfp4;
  recipe.hadamard.wgrad = false;
  recipe.rounding.gradient = RoundingMode::nearest;
  EXPECT_FALSE(treatment_of(recipe).rotates || treatment_of(recipe).draws);
}

TEST(Treatments, WeightsAreHeldAsCodesOfOneFormat) {
  RecipeConfig rows, two(RecipeName::mxfp8);
  rows.activation = {"mxfp8", "mxfp8"};
  two.weight.forward = "nvfp4";
  for (const RecipeConfig& recipe : {rows, two}) {
    RunConfig config = with(recipe);
    derive(config);
    EXPECT_TRUE(quantizes(config));
    EXPECT_TRUE(coded_weights(config).empty());
    EXPECT_EQ(config.precision.primary_weights.get(), PrimaryWeights::bf16);
  }
  RunConfig layered = with(rows, {{{"first 1"}, {}, RecipeName::nvfp4}, {{"1"}, {}, RecipeName::fp8_block}});
  derive(layered);
  EXPECT_EQ(coded_weights(layered),
            (std::vector{formats::id_of<formats::Nvfp4>, formats::id_of<formats::Fp8Block>}));
  EXPECT_EQ(layered.precision.primary_weights.get(), PrimaryWeights::quantized);
}

TEST(Treatments, BlocksAreNamed) {
  const auto named = [](const char* text) {
    const auto range = blocks_named(text, 8);
    return range ? std::pair(range->first, range->end) : std::pair(std::int64_t{-1}, std::int64_t{-1});
  };
  using Range = std::pair<std::int64_t, std::int64_t>;
  EXPECT_EQ(named("first 3"), (Range{0, 3}));
  EXPECT_EQ(named("last 8"), (Range{0, 8}));
  EXPECT_EQ(named("0"), (Range{0, 1}));
  EXPECT_EQ(named("2-7"), (Range{2, 8}));
  for (const char* text : {"", "first", "first 0", "first 9", "last -1", "8", "-1", "3-2", "3-8", "1-", "-", "a",
                           "1 - 2", "99999999999999999999"})
    EXPECT_EQ(named(text), (Range{-1, -1})) << text;
}

TEST(Treatments, EqualMatricesAreToldTogether) {
  RunConfig config = with(RecipeName::mxfp8, {{{"1", "3"}, {ModuleName::mlp_down}, RecipeName::bf16}});
  const auto groups = treated_alike(config);
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].which, "attention.qkv, attention.out, mlp.up of blocks 0-3; mlp.down of blocks 0, 2");
  EXPECT_EQ(groups[1].which, "mlp.down of blocks 1, 3; head");
  EXPECT_EQ(text_of(groups[0].treatment), "weight mxfp8, x mxfp8, dy mxfp8");
  EXPECT_EQ(text_of(groups[1].treatment), "bf16");
}

TEST(Treatments, ARuleThatLaterOnesHideIsTold) {
  RunConfig config = with(RecipeName::bf16, {{{"0"}, {}, RecipeName::mxfp8}, {{}, {}, RecipeName::nvfp4}});
  std::vector<Finding> found;
  advise_treatments(config, found);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].keys.front(), "precision.layers[0]");
  std::swap(config.precision.layers[0], config.precision.layers[1]);
  found.clear();
  advise_treatments(config, found);
  EXPECT_TRUE(found.empty());
}

}  // namespace
}  // namespace tessera
