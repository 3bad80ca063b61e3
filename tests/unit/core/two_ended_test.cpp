#include "core/params/two_ended.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace tessera {
namespace {

constexpr End low = End::low, high = End::high;

TEST(TwoEnded, RoomIsThatOfTheLargestThatAreThereAtOnce) {
  EXPECT_EQ(room_for({}), 0);
  EXPECT_EQ(room_for({{low, 7, 0, 9}}), 7);
  EXPECT_EQ(room_for({{low, 7, 0, 1}, {high, 2, 1, 2}, {low, 3, 2, 3}, {high, 8, 3, 4}}), 11);
  EXPECT_EQ(room_for({{low, 7, 0, 1}, {low, 9, 2, 3}}), 9) << "one slot alone";
  EXPECT_EQ(room_for({{low, 5, 0, 9}, {high, 1, 1, 2}, {high, 6, 4, 5}}), 11) << "one stays";
  EXPECT_EQ(room_for({{low, 5, 0, 3}, {high, 6, 4, 5}}), 6) << "one goes before the other comes";
  EXPECT_EQ(room_for({{high, 6, 4, 5}, {low, 5, 0, 4}}), 11) << "in any order";
}

/// Whatever the sizes and times, those that are there at once do not meet. Two slots as large as the largest would be
/// no smaller.
TEST(TwoEnded, WhatIsThereAtOnceDoesNotMeet) {
  std::mt19937 random(5);
  for (int drawn = 0; drawn < 200; ++drawn) {
    std::vector<Tenant> tenants;
    std::int64_t most = 0;
    for (std::size_t i = 0; i < 2 + random() % 9; ++i) {
      const auto from = static_cast<std::int64_t>(random() % 20);
      tenants.push_back({random() % 2 == 0 ? low : high, static_cast<std::int64_t>(random() % 50), from,
                         from + static_cast<std::int64_t>(random() % 5)});
      most = std::max(most, tenants.back().size);
    }
    const std::int64_t memory = room_for(tenants);
    EXPECT_LE(memory, 2 * most);
    for (const Tenant& one : tenants)
      for (const Tenant& other : tenants) {
        const Interval a = interval_at(one.end, one.size, memory), b = interval_at(other.end, other.size, memory);
        EXPECT_TRUE(a.begin >= 0 && a.end <= memory);
        const bool at_once = one.end != other.end && one.from <= other.to && other.from <= one.to;
        EXPECT_FALSE(at_once && a.meets(b)) << drawn;
      }
  }
}

TEST(TwoEnded, IntervalsMeetWhereTheyShareAByte) {
  EXPECT_TRUE((Interval{0, 4}.meets({3, 9})));
  EXPECT_FALSE((Interval{0, 4}.meets({4, 9})));
  EXPECT_TRUE((Interval{2, 3}.meets({0, 9})));
  EXPECT_FALSE((Interval{2, 2}.meets({0, 2})));
}

}  // namespace
}  // namespace tessera
