#include <gtest/gtest.h>

#include "tests/support/sound_config.hpp"

namespace tessera {
namespace {

using namespace test;

TEST(EvalSection, NeedsWindowsToEvaluateOn) {
  RunConfig config = sound();
  config.eval.every_steps = 10;
  EXPECT_EQ(advice(config), List{});
  config.data.eval_fraction = 0.0;
  EXPECT_EQ(advice(config), List{"eval.every_steps: no evaluation: data.eval_fraction 0 keeps no windows for it, and "
                                 "there are no data.eval_files"});
  config.data.eval_files = {"val.txt"};
  EXPECT_EQ(advice(config), List{});
}

}  // namespace
}  // namespace tessera
