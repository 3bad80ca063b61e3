#include <gtest/gtest.h>

#include "tests/support/sound_config.hpp"

namespace tessera {
namespace {

using namespace test;

RunConfig sharded(RecipeName recipe, PrimaryWeights held, RecomputeMode mode) {
  RunConfig config = holding(recipe, held);
  config.sharding = Sharding::full;
  config.recompute.mode = mode;
  return derived(config);
}

TEST(GatherSection, GathersModulesWhereCopiesDiffer) {
  using enum PrimaryWeights;
  using enum RecomputeMode;
  EXPECT_TRUE(gathers_modules(sharded(RecipeName::mxfp8, quantized, selective)));
  EXPECT_FALSE(gathers_modules(sharded(RecipeName::mxfp8, bf16, selective)));
  EXPECT_FALSE(gathers_modules(sharded(RecipeName::mxfp8, quantized, full)));
  EXPECT_FALSE(gathers_modules(sharded(RecipeName::mxfp8_2d, quantized, selective)));
  RunConfig asked = sharded(RecipeName::bf16, bf16, none);
  asked.gather.granularity = GatherGranularity::module;
  EXPECT_TRUE(gathers_modules(asked));
}

TEST(GatherSection, GranularityIsOfFullSharding) {
  RunConfig config = sound();
  config.gather.granularity = GatherGranularity::block;
  EXPECT_EQ(contradictions(config), List{"gather.granularity: is block, and weights are gathered for use only where "
                                         "sharding is full: use auto, or sharding full"});
  config.sharding = Sharding::full;
  EXPECT_EQ(contradictions(config), List{});
}

}  // namespace
}  // namespace tessera
