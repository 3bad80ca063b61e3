#include "core/params/usage.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/plan/plan.hpp"
#include "tests/support/small_runs.hpp"

namespace tessera {
namespace {

RunPlan plan_of(RecomputeMode mode) {
  RunConfig config = test::dense(Compute::bf16);
  config.model.tied_head = false;
  config.recompute.mode = mode;
  return resolve(config, 1, 0);
}

std::vector<Access> half_of(const std::vector<Access>& accesses, Half half) {
  std::vector<Access> some;
  std::ranges::copy_if(accesses, std::back_inserter(some), [=](const Access& a) { return a.half == half; });
  return some;
}

bool reads(const std::vector<Access>& accesses, ParamId param, Side side) {
  return std::ranges::any_of(accesses, [=](const Access& a) { return a.param == param && a.side == side; });
}

TEST(Usage, ListsEveryAccessOfForwardBackwardAndEvaluation) {
  const RunPlan plan = plan_of(RecomputeMode::none);
  const std::vector<Access> forward = half_of(plan.usage.training, Half::forward);
  const std::vector<Access> backward = half_of(plan.usage.training, Half::backward);
  ASSERT_FALSE(plan.usage.evaluation.empty());
  for (const Access& access : plan.usage.evaluation) EXPECT_EQ(access.half, Half::forward);
  for (int p = 0; p < plan.registry.size(); ++p) {
    const ParamId param{p};
    const Role role = plan.registry[param].role;
    EXPECT_TRUE(reads(forward, param, Side::rowwise)) << plan.registry[param].name;
    EXPECT_TRUE(reads(plan.usage.evaluation, param, Side::rowwise)) << plan.registry[param].name;
    EXPECT_EQ(reads(backward, param, Side::columnwise), role == Role::matrix || role == Role::head)
        << plan.registry[param].name;
    EXPECT_EQ(std::ranges::count(plan.usage.contributions, param, &Contribution::param), 1)
        << plan.registry[param].name;
  }
  EXPECT_TRUE(std::equal(forward.begin(), forward.begin() + 5, plan.usage.evaluation.begin()));
  // Forward begins with the embedding; backward ends with the first block.
  EXPECT_EQ(plan.registry[forward.front().param].role, Role::embedding);
  EXPECT_TRUE(plan.registry[backward.back().param].name.starts_with("layers.0."));
}

TEST(Usage, ARecomputedForwardBelongsToBackward) {
  const RunPlan kept = plan_of(RecomputeMode::none), again = plan_of(RecomputeMode::full);
  EXPECT_EQ(half_of(again.usage.training, Half::forward), half_of(kept.usage.training, Half::forward));
  const std::vector<Access> backward = half_of(again.usage.training, Half::backward);
  EXPECT_GT(backward.size(), half_of(kept.usage.training, Half::backward).size());
  // Except the product that ends a block: backward does not read its result, so it is not recomputed.
  for (int p = 0; p < again.registry.size(); ++p) {
    const ParamSpec& spec = again.registry[{p}];
    if (spec.role != Role::matrix) continue;
    EXPECT_EQ(reads(backward, {p}, Side::rowwise), !spec.name.ends_with("mlp.down.weight")) << spec.name;
  }
}

}  // namespace
}  // namespace tessera
