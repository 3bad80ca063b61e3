#include "core/params/visits.hpp"

#include <gtest/gtest.h>

#include <string>

#include "core/plan/plan.hpp"
#include "tests/support/small_runs.hpp"

namespace tessera {
namespace {

using Mode = RecomputeMode;

RunConfig sharded(RunConfig config, RecipeName recipe, Mode mode, GatherGranularity granularity) {
  config.sharding = Sharding::full;
  config.model.tied_head = false;
  config.model.hidden = 64;
  config.model.seq_len = 32;
  config.model.ffn = std::int64_t{64};
  config.model.head_dim = std::int64_t{16};
  config.precision.recipe = recipe;
  config.precision.primary_weights = recipe == RecipeName::bf16 ? PrimaryWeights::bf16 : PrimaryWeights::quantized;
  config.gather.granularity = granularity;
  config.proof.cuts = recipe == RecipeName::bf16 ? GatherCuts::flat : GatherCuts::tile;
  config.recompute.mode = mode;
  config.recompute.modules = std::vector{RecomputeModule::attention};
  return config;
}

/// Visits as text, "0 1r 1c": the block (or first parameter of a module outside of blocks), and the sides of its codes.
std::string text(const RunPlan& plan, const std::vector<Access>& accesses, ProcessGroup processes) {
  std::string all;
  for (const Visit& visit : visits_of(accesses, plan.layout, plan.sync.weights)) {
    const BucketGroup& group = plan.layout.groups()[visit.group];
    if (group.processes != processes) continue;
    const ParamSpec& first = plan.registry[plan.layout.buckets()[group.buckets.front()].members.front().param];
    all += (all.empty() ? "" : " ") + (first.block < 0 ? first.name.substr(0, 5) : std::to_string(first.block));
    if (contains(visit.sides, Sides::rowwise)) all += 'r';
    if (contains(visit.sides, Sides::columnwise)) all += 'c';
  }
  return all;
}

std::string training(const RunConfig& config, ProcessGroup processes = ProcessGroup::dense) {
  const RunPlan plan = resolve(config, 2, 0);
  return text(plan, plan.usage.training, processes);
}

TEST(Visits, OneForwardAndOneBackwardWhereOnePayloadServesBoth) {
  using enum GatherGranularity;
  const RunConfig dense = test::dense(Compute::bf16);
  for (Mode mode : {Mode::none, Mode::selective, Mode::full})
    EXPECT_EQ(training(sharded(dense, RecipeName::bf16, mode, block)), "embed 0 1 head. 1 0");
  for (RecipeName recipe : {RecipeName::fp8_block, RecipeName::mxfp8_2d, RecipeName::nvfp4})
    EXPECT_EQ(training(sharded(dense, recipe, Mode::full, block)), "embed 0r 1r head. 1r 0r");
  EXPECT_EQ(training(sharded(dense, RecipeName::bf16, Mode::none, module)), "embed 0 0 1 1 head. 1 1 0 0");
}

TEST(Visits, OnlyTheCopyThatIsReadWhereCopiesTravelApart) {
  using enum GatherGranularity;
  const RunConfig dense = test::dense(Compute::bf16);
  EXPECT_EQ(training(sharded(dense, RecipeName::mxfp8, Mode::none, block)), "embed 0r 1r head. 1c 0c");
  EXPECT_EQ(training(sharded(dense, RecipeName::mxfp8, Mode::full, block)), "embed 0r 1r head. 1r 1c 0r 0c");
  EXPECT_EQ(training(sharded(dense, RecipeName::mxfp8, Mode::selective, block)), "embed 0r 1r head. 1rc 0rc");
  EXPECT_EQ(training(sharded(dense, RecipeName::mxfp8, Mode::selective, module)),
            "embed 0r 0r 1r 1r head. 1c 1r 1c 0c 0r 0c");
}

TEST(Visits, ExpertsAreVisitedWithTheirBlock) {
  using enum GatherGranularity;
  const RunConfig moe = sharded(test::mixture(Compute::bf16), RecipeName::mxfp8, Mode::none, block);
  EXPECT_EQ(training(moe, ProcessGroup::dense), "embed 0r 1r head. 1c 0c");
  EXPECT_EQ(training(moe, ProcessGroup::expert), "0r 1r 1c 0c");
}

TEST(Visits, AnEvaluationOnlyGoesForward) {
  const RunPlan plan =
      resolve(sharded(test::dense(Compute::bf16), RecipeName::mxfp8, Mode::full, GatherGranularity::block), 2, 0);
  EXPECT_EQ(text(plan, plan.usage.evaluation, ProcessGroup::dense), "embed 0r 1r head.");
}

TEST(Visits, ATiedEmbeddingIsVisitedByTheHead) {
  RunConfig config = sharded(test::dense(Compute::bf16), RecipeName::bf16, Mode::none, GatherGranularity::block);
  config.model.tied_head = true;
  EXPECT_EQ(training(config), "embed 0 1 final embed final 1 0");
}

Visit visit_to(int group, Sides sides = Sides::none) {
  Visit visit;
  visit.group = {group};
  visit.sides = sides;
  return visit;
}

TEST(Walk, SlotsAlternateThroughAllPasses) {
  const std::vector<Visit> visits{visit_to(4), visit_to(5), visit_to(6)};
  Walk walk(visits, 2);
  EXPECT_EQ(walk.current(), nullptr);
  for (int number = 0; number < 6; ++number) {
    ASSERT_NE(walk.next(), nullptr);
    EXPECT_EQ(walk.next_slot(), number % 2);
    walk.advance();
    EXPECT_EQ(walk.current()->group, GroupId{4 + number % 3});
    EXPECT_EQ(walk.current_slot(), number % 2);
  }
  EXPECT_EQ(walk.next(), nullptr);
  EXPECT_EQ(Walk().next(), nullptr);
}

TEST(Walk, StaysWhereTheNextVisitIsServed) {
  const std::vector<Visit> visits{visit_to(4), visit_to(5), visit_to(5), visit_to(4)};
  Walk walk(visits, 2);
  std::vector<int> groups;
  for (int slot = 0; walk.next(); slot = 1 - slot) {
    EXPECT_EQ(walk.next_slot(), slot);
    walk.advance();
    EXPECT_EQ(walk.current_slot(), slot);
    groups.push_back(walk.current()->group.value);
  }
  EXPECT_EQ(groups, (std::vector{4, 5, 4, 5, 4}));
  const std::vector<Visit> apart{visit_to(5, Sides::rowwise), visit_to(5, Sides::columnwise)};
  Walk copies(apart, 1);
  copies.advance();
  ASSERT_NE(copies.next(), nullptr);
  EXPECT_EQ(copies.next()->sides, Sides::columnwise);
}

}  // namespace
}  // namespace tessera
