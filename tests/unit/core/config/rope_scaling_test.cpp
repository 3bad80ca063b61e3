#include <gtest/gtest.h>

#include "tests/support/sound_config.hpp"

namespace tessera {
namespace {

using namespace test;

TEST(RopeScalingSection, SlowsDownBetweenItsTwoFactors) {
  RunConfig config = sound();
  config.model.position = Position::rotary;
  config.model.rope_scaling = RopeScalingConfig{.factor = 8, .original_seq_len = 16};
  EXPECT_EQ(contradictions(config), List{});
  config.model.rope_scaling->low_freq_factor = 4;
  EXPECT_EQ(contradictions(config), List{"model.rope_scaling.low_freq_factor: 4 is not below high_freq_factor 4"});
}

}  // namespace
}  // namespace tessera
