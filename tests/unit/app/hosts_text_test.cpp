#include "app/training/tell/hosts_text.hpp"

#include <gtest/gtest.h>

#include <random>

#include "core/config/config.hpp"
#include "tests/support/drawn_configs.hpp"

namespace tessera {
namespace {

/// A plan of a drawn config; empty if the draw is refused.
std::optional<RunPlan> drawn_plan(std::mt19937& random, int ranks) {
  RunConfig config = test::untied::drawn(random, ranks);
  if (!refusals(config, ranks).empty()) return std::nullopt;
  return resolve(config, ranks, static_cast<int>(random() % static_cast<unsigned>(ranks)));
}

TEST(BytesOverHosts, AreAllInsideOneHostAndAllAcrossHostsOfOneRank) {
  std::mt19937 random(3);
  int planned = 0;
  for (int i = 0; i < 12; ++i) {
    const std::optional<RunPlan> plan = drawn_plan(random, 4);
    if (!plan) continue;
    ++planned;
    double all = 0;
    for (const CollectiveCost& cost : plan->collectives) all += static_cast<double>(cost.bytes * cost.count);
    const Received one = received_over(*plan, 1), two = received_over(*plan, 2), four = received_over(*plan, 4);
    const double slack = 1e-9 * all;
    EXPECT_EQ(one.across, 0);
    EXPECT_EQ(four.inside, 0);
    for (const Received& received : {one, two, four}) {
      EXPECT_NEAR(received.inside + received.across, all, slack);
    }
    EXPECT_GT(two.across, 0);
    EXPECT_LT(two.across, four.across);
  }
  EXPECT_GT(planned, 3);
}

/// Expert groups of two are neighbours, on one host of two ranks; ranks that hold the same experts are on two hosts.
TEST(BytesOverHosts, FollowTheProcessGroups) {
  RunConfig config = test::untied::mixture();
  config.parallel.expert = 2;
  config.batch = {.global = 4, .micro = 1};
  const RunPlan whole = resolve(config, 4, 1);
  const auto only = [&](auto keep) {
    RunPlan plan = whole;
    std::erase_if(plan.collectives, [&](const CollectiveCost& cost) { return !keep(cost); });
    EXPECT_FALSE(plan.collectives.empty());
    return received_over(plan, 2);
  };
  EXPECT_EQ(only([](const CollectiveCost& c) { return c.collective == Collective::exchange_rows; }).across, 0);
  EXPECT_EQ(only([&](const CollectiveCost& c) {
              return c.group >= 0 && whole.layout.groups()[GroupId{c.group}].processes == ProcessGroup::expert;
            }).inside,
            0);
  const Received dense = only([&](const CollectiveCost& c) {
    return c.group >= 0 && whole.layout.groups()[GroupId{c.group}].processes == ProcessGroup::dense;
  });
  EXPECT_NEAR(dense.across, 2 * dense.inside, 1e-9 * dense.across);  // one neighbour, two ranks elsewhere
}

TEST(UnevenShares, AreToldWhereRowsOfBlocksAreFewForTheRanks) {
  RunConfig config = test::untied::full(test::untied::dense(RecipeName::fp8_block));
  config.batch = {.global = 64, .micro = 1};
  const RunPlan many = resolve(config, 64, 0);
  EXPECT_GT(largest_over_mean(many), 1.1);
  EXPECT_NE(uneven_text(many).find("recipe fp8_block"), std::string::npos);
  RunConfig plain = test::untied::full(test::untied::dense());
  plain.batch = {.global = 64, .micro = 1};
  const RunPlan even = resolve(plain, 64, 0);
  EXPECT_LT(largest_over_mean(even), 1.001);
  EXPECT_EQ(uneven_text(even), "");
}

}  // namespace
}  // namespace tessera
