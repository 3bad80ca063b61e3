#include <gtest/gtest.h>

#include "tests/support/sound_config.hpp"

namespace tessera {
namespace {

using namespace test;

TEST(CheckpointSection, LiesWhereItsRunIsNamed) {
  RunConfig config = sound();
  config.run.name = "small";
  EXPECT_EQ(derived(config).checkpoint.dir.get(), "runs/small");
  EXPECT_EQ(derived(config).checkpoint.io.get(), CheckpointIo::mpio);
  config.checkpoint.dir = "elsewhere";
  EXPECT_EQ(derived(config).checkpoint.dir.get(), "elsewhere");
}

TEST(CheckpointSection, WhatCheckpointsCannotBe) {
  RunConfig config = sound();
  config.checkpoint.quantized = true;
  EXPECT_EQ(contradictions(config), List{"checkpoint.quantized: recipe bf16 quantizes no weight: leave quantized out, "
                                         "or choose another recipe"});
  RunConfig coded = holding(RecipeName::nvfp4, PrimaryWeights::quantized);
  coded.checkpoint.quantized = true;
  EXPECT_EQ(contradictions(coded), List{});
  coded.sharding = Sharding::full;
  coded.proof.cuts = GatherCuts::tile;
  EXPECT_EQ(contradictions(coded), List{"checkpoint.quantized: is true, and with sharding full no rank holds whole "
                                        "weights: leave it out and run `tessera quantize` on the step, or use sharding "
                                        "optimizer"});
  config.checkpoint = {};
  config.checkpoint.async = true;
  derive(config);
  EXPECT_EQ(config.checkpoint.io.get(), CheckpointIo::direct);
  EXPECT_EQ(contradictions(config), List());
  config.checkpoint.io = CheckpointIo::mpio;
  EXPECT_EQ(contradictions(config), List{"checkpoint.io: is mpio, and no thread beside training may use MPI: use io "
                                         "direct, or leave io or async out"});
}

}  // namespace
}  // namespace tessera
