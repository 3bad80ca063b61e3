#include <gtest/gtest.h>

#include "tests/support/sound_config.hpp"

namespace tessera {
namespace {

using namespace test;

RunConfig shared(std::int64_t experts, std::int64_t top_k, std::int64_t expert) {
  RunConfig config = with_experts(experts, top_k);
  config.parallel.expert = expert;
  return config;
}

TEST(ParallelSection, ExpertsAreSharedEvenly) {
  EXPECT_EQ(contradictions(shared(6, 2, 3)), List{});
  EXPECT_EQ(contradictions(shared(6, 2, 4)),
            List{"parallel.expert: 4 does not divide 6 experts, of which each rank of a group holds as many: use 1, 2, "
                 "3 or 6"});
  RunConfig config = sound();
  config.parallel.expert = 2;
  EXPECT_EQ(contradictions(config), List{"parallel.expert: 2 ranks would hold the experts between them, and the model "
                                         "has none: use 1, or give model.moe"});
}

// A token goes at most once to each expert of a rank, and to at most top_k experts.
TEST(ParallelSection, RoomForExpertsRowsIsAlwaysEnough) {
  const auto room = [](const RunConfig& config) { return derived(config).parallel.expert_room.get(); };
  EXPECT_EQ(room(sound()), 1);
  EXPECT_EQ(room(shared(8, 2, 1)), 1);
  EXPECT_EQ(room(shared(8, 2, 4)), 4);
  EXPECT_EQ(room(shared(8, 4, 4)), 2);
  EXPECT_EQ(room(shared(4, 3, 4)), 4.0 / 3);
  RunConfig given = shared(8, 2, 4);
  given.parallel.expert_room = 1.5;
  EXPECT_EQ(room(given), 1.5);
  EXPECT_EQ(advice(given), List{});
  given.parallel.expert_room = 5.0;
  EXPECT_EQ(advice(given), List{"parallel.expert_room: 5 is more than can arrive: 4 is enough for any routing, and "
                                "memory is planned for no more"});
  given.parallel = {.sharding_group = {}, .expert = 1, .expert_room = 1.5};
  EXPECT_EQ(advice(given), List{"parallel.expert_room: has an effect only with parallel.expert above 1"});
}

TEST(ParallelSection, AShardingGroupIsAWordOrANumber) {
  ShardingGroup group;
  EXPECT_EQ(deck_text(group), "all");
  EXPECT_EQ(group.of(12), 12);
  group = 4;
  EXPECT_EQ(deck_text(group), "4");
  EXPECT_EQ(group.of(12), 4);
  group = ShardingGroup::host();
  EXPECT_EQ(group.of(12), 12);
  group.settle(3);
  EXPECT_EQ(group.of(12), 3);
  EXPECT_EQ(deck_text(group), "host");
}

}  // namespace
}  // namespace tessera
