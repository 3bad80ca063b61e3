// Refusals that depend on the limits of the back end's kernels.
#include <gtest/gtest.h>

#include "core/plan/plan.hpp"
#include "kernels/attention/attention.hpp"
#include "kernels/base/runtime.hpp"
#include "kernels/gemm/gemm.hpp"
#include "tests/support/shown.hpp"
#include "tests/support/small_runs.hpp"

namespace tessera {
namespace {

RunConfig with_experts(std::int64_t experts, ExpertWeights weights) {
  RunConfig config = test::mixture(Compute::bf16);
  config.model.moe->experts = experts;
  config.model.moe->weights = weights;
  return config;
}

TEST(Refusals, NameTheMostDiscreteExperts) {
  const bool limited = Runtime::back_end() == "Cuda";
  EXPECT_EQ(most_discrete_experts() == 256, limited);
  EXPECT_TRUE(refusals(with_experts(256, ExpertWeights::discrete), 1).empty());
  EXPECT_TRUE(refusals(with_experts(300, ExpertWeights::single), 1).empty());
  const std::vector<Finding> found = refusals(with_experts(300, ExpertWeights::discrete), 1);
  ASSERT_EQ(found.size(), limited ? 1u : 0u);
  if (!limited) return;
  EXPECT_EQ(found.front().keys, (std::vector<std::string>{"model.moe.experts", "model.moe.weights"}));
  EXPECT_NE(found.front().text.find("300 discrete experts are more than the 256"), std::string::npos);
  EXPECT_THROW(resolve(with_experts(300, ExpertWeights::discrete), 1, 0), Error);
}

TEST(Refusals, NameTheWidestHead) {
  const bool limited = Runtime::back_end() == "Cuda";
  EXPECT_EQ(most_head_dim() == 580, limited);
  RunConfig config = test::mixture(Compute::bf16);
  config.model.head_dim = 580;
  EXPECT_TRUE(refusals(config, 1).empty());
  config.model.head_dim = 582;
  const std::vector<Finding> found = refusals(config, 1);
  ASSERT_EQ(found.size(), limited ? 1u : 0u);
  if (!limited) return;
  EXPECT_EQ(found.front().keys.front(), "model.head_dim");
  EXPECT_NE(found.front().text.find("heads of 582 are wider than the 580"), std::string::npos);
}

TEST(Refusals, ExpertGroupsDivideTheRanks) {
  RunConfig config = with_experts(12, ExpertWeights::single);
  for (const std::int64_t expert : {2, 3, 4}) {
    SCOPED_TRACE(test::shown(expert));
    config.parallel = {};
    config.parallel.expert = expert;
    derive(config);
    EXPECT_EQ(refusals(config, 12).size(), 0u);
    const auto found = refusals(config, 1);
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found.front().keys.front(), "parallel.expert");
    EXPECT_NE(found.front().text.find(std::to_string(expert) + " does not divide 1 ranks"), std::string::npos);
    EXPECT_THROW(resolve(config, 1, 0), Error);
    // The limit of a product concerns the experts that one rank holds.
    RunConfig many = config;
    many.model.moe->experts = 240 * expert;
    many.model.moe->weights = ExpertWeights::discrete;
    EXPECT_TRUE(refusals(many, 12).empty());
  }
}

TEST(Refusals, ShardingGroupsAreWholeExpertGroupsAndDivideTheRanks) {
  RunConfig config = with_experts(12, ExpertWeights::single);
  config.batch = {.global = 12, .micro = 1};
  const auto refused = [&](ShardingGroup group, std::int64_t expert) {
    config.parallel = {};
    config.parallel.expert = expert;
    config.parallel.sharding_group = group;
    derive(config);
    std::string texts;
    for (const Finding& finding : refusals(config, 12)) texts += finding.keys.front() + ": " + finding.text;
    return texts;
  };
  for (const std::int64_t expert : {1, 2, 3, 4, 6, 12})
    for (std::int64_t ranks = 1; ranks <= 13; ++ranks)
      EXPECT_EQ(refused(ranks, expert).empty(), 12 % ranks == 0 && ranks % expert == 0) << ranks << " of " << expert;
  EXPECT_EQ(refused(5, 1), "parallel.sharding_group: 5 do not divide 12 ranks into groups of neighbours: use 1, 2, 3, "
                           "4, 6 or 12, or all");
  EXPECT_EQ(refused(6, 4), "parallel.sharding_group: 6 are not whole expert groups, which are 4 neighbours each: use 4 "
                           "or 12, or all");
  ShardingGroup host = ShardingGroup::host();
  EXPECT_EQ(refused(host, 4), "");
  host.settle(3);
  EXPECT_EQ(refused(host, 4), "parallel.sharding_group: 3 ranks of a host are not whole expert groups, which are 4 "
                              "neighbours each: use 4 or 12, or all");
}

}  // namespace
}  // namespace tessera
