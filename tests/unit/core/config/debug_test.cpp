#include <gtest/gtest.h>

#include "tests/support/sound_config.hpp"

namespace tessera {
namespace {

using namespace test;

TEST(DebugSection, ItsFilesDiffer) {
  RunConfig config = sound();
  config.debug.trace = config.debug.profile = "one.json";
  EXPECT_EQ(contradictions(config), List{"debug.profile: is the file of debug.trace too: name another"});
}

TEST(DebugSection, AProfileShowsSteps) {
  RunConfig config = sound();
  config.debug.profile = "p.json";
  EXPECT_EQ(advice(config), List{});
  config.run.steps = 0;
  EXPECT_EQ(advice(config).back(), "debug.profile: has an effect only in runs of at least one step");
}

}  // namespace
}  // namespace tessera
