#include <gtest/gtest.h>

#include "core/config/treatments.hpp"
#include "kernels/formats/registry.hpp"
#include "tests/support/sound_config.hpp"

namespace tessera {
namespace {

using namespace test;

TEST(PrecisionSection, HoldsWeightsAsTheRecipeMultipliesThem) {
  RunConfig config = sound();
  EXPECT_EQ(derived(config).precision.primary_weights.get(), PrimaryWeights::bf16);
  config.precision.recipe = RecipeName::nvfp4;
  EXPECT_EQ(derived(config).precision.primary_weights.get(), PrimaryWeights::quantized);
  EXPECT_EQ(contradictions(config), List{});
}

TEST(PrecisionSection, RefusesWhatItsRecipeCannotDo) {
  RunConfig config = sound();
  config.precision.primary_weights = PrimaryWeights::quantized;
  EXPECT_EQ(contradictions(config), List{"precision.primary_weights: recipe bf16 quantizes no weight: leave "
                                         "primary_weights out, or choose another recipe"});
  config = sound();
  config.precision.recipe = RecipeName::nvfp4;
  config.precision.compute = Compute::fp32;
  EXPECT_EQ(contradictions(config),
            List{"precision.recipe: nvfp4 quantizes bf16 values: use compute bf16, or recipe bf16"});
  config.precision.compute = Compute::bf16;
  config.precision.quantize_head = true;
  EXPECT_EQ(contradictions(config), List{});
  config.model.tied_head = true;
  EXPECT_EQ(contradictions(config), List{"precision.quantize_head: a tied head is the token embedding, which stays in "
                                         "bf16: use tied_head false, or leave it out"});
  config.precision.quantize_head = false;
  config.precision.bf16_first = 2;
  EXPECT_EQ(contradictions(config), List{});
  config.precision.bf16_last = 1;
  EXPECT_EQ(contradictions(config),
            List{"precision.bf16_first: 2 first and 1 last blocks are more than the 2 there are"});
}

TEST(PrecisionSection, ASeedAndStatisticsAreOfQuantizers) {
  RunConfig config = sound();
  EXPECT_EQ(derived(config).precision.seed.get(), config.run.seed);
  config.precision.recipe = RecipeName::nvfp4;
  config.precision.seed = std::uint64_t{7};
  config.precision.statistics_every = 10;
  EXPECT_EQ(advice(config), List{});
  config.precision.recipe = RecipeName::mxfp8;
  EXPECT_EQ(advice(config),
            List{"precision.seed: has an effect only with a recipe that rounds stochastically, as nvfp4 does"});
  config.precision.seed = {};
  config.precision.recipe = RecipeName::bf16;
  EXPECT_EQ(advice(config), List{"precision.statistics_every: has an effect only with a recipe that quantizes"});
}

FormatConfig described(FormatElement element, FormatBlock block, formats::ScaleKind scale) {
  FormatConfig format;
  format.element = element;
  format.block = block;
  format.scale = scale;
  return format;
}

TEST(PrecisionSection, FormatsOfItsOwnAreNamedByRecipes) {
  RunConfig config = sound();
  config.precision.formats = {{"int4", described({0, 3}, {16, 16}, formats::ScaleKind::e4m3)},
                              {"rows", described({3, 3}, {1, 64}, formats::ScaleKind::e8m0)}};
  EXPECT_EQ(advice(config), List{"precision.formats: has no effect: no recipe of this deck names one of them"});
  config.precision.recipe.weight = {"int4", "int4"};
  config.precision.recipe.activation.forward = "rows";
  EXPECT_EQ(contradictions(config), List{});
  EXPECT_EQ(advice(config), List{});
  const Treatment treatment = treatment_rules(config).standard;
  EXPECT_EQ(treatment.weight.forward, find_format("int4_16x16_e4m3"));
  EXPECT_EQ(treatment.weight.dgrad, treatment.weight.forward);
  EXPECT_EQ(treatment.activation.forward, find_format("e3m3_1x64_e8m0"));
  EXPECT_FALSE(treatment.activation.wgrad);
  EXPECT_EQ(coded_weights(config), std::vector{*find_format("int4_16x16_e4m3")});
  config.precision.recipe.weight = {"row", "row"};
  EXPECT_TRUE(contradictions(config).at(0).starts_with("precision.recipe.weight: row is none of the choices"));
  config.precision.recipe.weight = {"int4", "int4"};
  config.precision.formats["int4"].block = {1, 16};
  EXPECT_TRUE(contradictions(config).at(0).starts_with("precision.recipe.weight: int4 has blocks of rows under"));
  config.precision.formats["int4"].element = {0, 7};
  EXPECT_TRUE(contradictions(config).at(0).starts_with("precision.formats.int4.scale: is e4m3, of 4 significant"));
}

}  // namespace
}  // namespace tessera
