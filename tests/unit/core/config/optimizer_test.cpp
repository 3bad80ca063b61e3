#include <gtest/gtest.h>

#include "tests/support/sound_config.hpp"

namespace tessera {
namespace {

using namespace test;

TEST(OptimizerSection, TheRateDoesNotFallBelowItsLast) {
  RunConfig config = sound();
  config.optimizer.min_lr = 0.5;
  EXPECT_EQ(contradictions(config), List{"optimizer.min_lr: 0.5 is above lr 0.0003"});
}

TEST(OptimizerSection, DecaysAreBelowOneInTheirType) {
  RunConfig config = sound();
  config.optimizer.beta1 = config.optimizer.beta2 = config.optimizer.ema = config.optimizer.muon.momentum = 0.9999999;
  EXPECT_EQ(contradictions(config), List{});
  config.optimizer.beta2 = config.optimizer.muon.momentum = 0.99999998;
  const std::string why =
      ": 0.99999998 is 1 in fp32, in which it is used, so that nothing would be averaged: use 0.9999999 at most";
  EXPECT_EQ(contradictions(config), (List{"optimizer.beta2" + why, "optimizer.muon.momentum" + why}));
}

TEST(OptimizerSection, WsdNeedsItsDecayWithinTheRun) {
  RunConfig config = sound();
  config.optimizer.schedule = RateSchedule::wsd;
  EXPECT_EQ(contradictions(config), List{"optimizer.decay_steps: missing: schedule wsd needs it"});
  config.optimizer.decay_steps = 80;
  config.optimizer.warmup_steps = 20;
  EXPECT_EQ(contradictions(config), List{});
  config.optimizer.warmup_steps = 21;
  EXPECT_EQ(contradictions(config),
            List{"optimizer.decay_steps: warm-up 21 and decay 80 are longer than the run of 100 steps"});
}

TEST(OptimizerSection, AdvisesOfARunThatEndsWithinWarmUp) {
  RunConfig config = sound();
  config.optimizer.warmup_steps = 99;
  EXPECT_EQ(advice(config), List{});
  config.optimizer.warmup_steps = 100;
  EXPECT_EQ(advice(config), List{"optimizer.warmup_steps: the run of 100 steps ends within warm-up"});
}

}  // namespace
}  // namespace tessera
