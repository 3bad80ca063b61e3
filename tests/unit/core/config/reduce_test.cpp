#include <gtest/gtest.h>

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

}  // namespace
}  // namespace tessera
