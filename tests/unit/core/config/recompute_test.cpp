#include <gtest/gtest.h>

#include "tests/support/sound_config.hpp"

namespace tessera {
namespace {

using namespace test;

TEST(RecomputeSection, ModulesFollowFromTheMode) {
  RunConfig config = sound();
  EXPECT_TRUE(derived(config).recompute.modules.get().empty());
  config.recompute.mode = RecomputeMode::selective;
  EXPECT_EQ(derived(config).recompute.modules.get(), std::vector{RecomputeModule::attention});
  config.recompute.modules = std::vector<RecomputeModule>{};
  EXPECT_EQ(contradictions(config), List{"recompute.modules: mode selective needs at least one module"});
}

}  // namespace
}  // namespace tessera
