#include <gtest/gtest.h>

#include "tests/support/sound_config.hpp"

namespace tessera {
namespace {

using namespace test;

TEST(TensorsSection, StepsNeedNames) {
  RunConfig config = sound();
  config.debug.tensors.step = {1};
  EXPECT_EQ(contradictions(config), List{"debug.tensors.step: needs debug.tensors.names: which tensors of these steps "
                                         "are to be written"});
  config.debug.tensors.names = {"*"};
  EXPECT_EQ(contradictions(config), List{});
  EXPECT_EQ(advice(config), List{});
}

TEST(TensorsSection, TellsWhatIsOfNoUse) {
  RunConfig config = sound();
  config.debug.tensors.names = {"*"};
  EXPECT_EQ(advice(config), List{"debug.tensors.names: has an effect only with a step"});
  config.debug.tensors.step = {config.run.steps + 1};
  EXPECT_EQ(advice(config), List{"debug.tensors.step: has an effect only on steps that the run makes"});
}

TEST(TensorsSection, TakesRowsOfExpertsFromOneRank) {
  RunConfig config = with_experts(4, 2);
  config.debug.tensors = {{1}, {"*"}};
  EXPECT_EQ(contradictions(config), List{});
  config.parallel.expert = 2;
  const List found = contradictions(config);
  EXPECT_TRUE(std::ranges::any_of(found, [](const std::string& text) {
    return text.starts_with("debug.tensors.step: the rows of an expert come from many ranks");
  }));
}

}  // namespace
}  // namespace tessera
