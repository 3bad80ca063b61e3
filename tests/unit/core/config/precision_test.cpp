#include <gtest/gtest.h>

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

}  // namespace
}  // namespace tessera
