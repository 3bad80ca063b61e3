#include <gtest/gtest.h>

#include "tests/support/sound_config.hpp"

namespace tessera {
namespace {

using namespace test;

TEST(RoutingSection, ARecordIsAFileOfItsOwn) {
  for (std::string RoutingConfig::*other : {&RoutingConfig::record, &RoutingConfig::replay}) {
    RunConfig config = with_experts(4, 2);
    config.routing.*other = "one.bin";
    EXPECT_EQ(contradictions(config), List{});
  }
  RunConfig config = with_experts(4, 2);
  config.routing.record = config.routing.replay = "one.bin";
  EXPECT_EQ(contradictions(config), List{"routing.record: is the file of routing.replay too: name another"});
  config.routing.replay = "";
  config.debug.profile = "one.bin";
  EXPECT_EQ(contradictions(config), List{"routing.record: is the file of debug.profile too: name another"});
}

TEST(RoutingSection, TwoBytesHoldAnExpert) {
  RunConfig config = with_experts(65536, 2);
  EXPECT_EQ(contradictions(config), List{});
  config.routing.record = "one.bin";
  EXPECT_EQ(contradictions(config), List{"routing.record: records choices of at most 65535 experts"});
}

TEST(RoutingSection, NoModelButAMixtureHasChoices) {
  RunConfig config = sound();
  config.routing.record = "one.bin";
  EXPECT_EQ(advice(config).back(), "routing.record: has an effect only on models with model.moe");
}

}  // namespace
}  // namespace tessera
