#include <gtest/gtest.h>

#include "tests/support/shown.hpp"
#include "tests/support/sound_config.hpp"

namespace tessera {
namespace {

using namespace test;

TEST(ReduceSection, FullShardingHasNoBuckets) {
  RunConfig config = sound();
  config.reduce.bucket_mib = 1;
  EXPECT_EQ(advice(config), List{});
  config.sharding = Sharding::full;
  EXPECT_EQ(advice(config), List{"reduce.bucket_mib: has an effect only with sharding: optimizer: under full sharding "
                                 "gradients travel module by module"});
}

TEST(ReduceSection, WiresOfFewBytesNeedTheOrderOfTheBatch) {
  for (GradientWire wire : {GradientWire::bf16, GradientWire::mxfp8, GradientWire::fp8_block}) {
    SCOPED_TRACE(shown(wire));
    RunConfig config = sound();
    config.reduce.wire = wire;
    EXPECT_EQ(contradictions(config),
              List{"reduce.wire: rounds the gradient of each micro-batch, which order batch sums one by one; order "
                   "rank first adds up those of a rank: use order batch, or wire fp32"});
    config.reduce.order = ReduceOrder::batch;
    EXPECT_EQ(contradictions(config), List{});
    config.reduce.rounding = WireRounding::stochastic;
    EXPECT_EQ(contradictions(config).size(), wire == GradientWire::bf16 ? 0u : 1u);
  }
}

TEST(ReduceSection, KeysOfAWireAreIdleWithoutOne) {
  RunConfig config = sound();
  config.reduce.keep = {KeptGradients::norms};
  config.reduce.rounding = WireRounding::stochastic;
  EXPECT_EQ(advice(config),
            (List{"reduce.keep: has an effect only with a wire of few bytes: fp32 keeps all gradients",
                  "reduce.rounding: has an effect only with wire bf16"}));
  config.reduce.order = ReduceOrder::batch;
  config.reduce.wire = GradientWire::bf16;
  EXPECT_EQ(advice(config), List{});
}

}  // namespace
}  // namespace tessera
