#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "app/training/loop/replicas.hpp"
#include "kernels/random/random.hpp"
#include "tests/support/odd_schedules.hpp"
#include "tests/support/trial.hpp"

/// Full sharding: ranks keep slices of weights and gradients, which are whole in a pool while they are used.
namespace tessera {
namespace {

using test::mpi;
using test::Trial;

/// A run's config, with one micro-batch a rank and step unless `micro` says otherwise.
RunConfig sharded(RunConfig config, std::int64_t micro = 0) {
  config.sharding = Sharding::full;
  config.batch.micro = micro > 0 ? micro : config.batch.global / mpi().size();
  return config;
}

/// A config with a recipe whose two copies travel apart, or that has one payload.
RunConfig coded(RecipeName recipe, RecomputeMode mode, GatherGranularity granularity) {
  RunConfig config = test::base(Compute::bf16);
  config.model.hidden = 64;
  config.model.seq_len = 32;
  config.model.moe = MoeConfig{};
  config.model.moe->experts = 3;
  config.model.moe->top_k = 2;
  config.model.ffn = std::int64_t{64};
  config.precision.recipe = recipe;
  config.gather.granularity = granularity;
  config.recompute.mode = mode;
  config = sharded(config, 1);
  derive(config);
  return config;
}

std::vector<RunConfig> some_ways() {
  using Mode = RecomputeMode;
  using enum GatherGranularity;
  return {sharded(test::dense(Compute::fp32), 1), sharded(test::mixture(Compute::bf16)),
          coded(RecipeName::mxfp8, Mode::selective, automatic), coded(RecipeName::mxfp8, Mode::full, block),
          coded(RecipeName::nvfp4, Mode::none, module), coded(RecipeName::fp8_block, Mode::none, block),
          coded(RecipeName::fp8_tensor, Mode::full, module)};
}

TEST(FullSharding, TakesTheMemoryThatWasPlanned) {
  for (const RunConfig& config : some_ways()) {
    Trial run(config, 0);
    run.train();
    EXPECT_EQ(run.late_allocations(), 0);
    for (std::size_t c = 0; c < run.plan().memory.size(); ++c)
      EXPECT_EQ(run.device().memory()[c], run.plan().memory[c])
          << name_of(config.precision.recipe) << ": " << name_of(static_cast<Category>(c));
  }
}

/// Expert groups of two ranks.
RunConfig spread(RunConfig config) {
  config.parallel.expert = mpi().size() % 2 == 0 ? 2 : 1;
  config.parallel.expert_room = {};
  derive(config);
  return config;
}

/// The same run with `sharding: optimizer`.
RunConfig whole(RunConfig config) {
  config.sharding = Sharding::optimizer;
  config.gather = {};
  derive(config);
  return config;
}

TEST(FullSharding, EqualsShardedOptimizersUnderDelays) {
  using enum GatherGranularity;
  for (RunConfig config : {sharded(test::dense(Compute::bf16)), sharded(spread(test::mixture(Compute::fp32))),
                           sharded(coded(RecipeName::mxfp8, RecomputeMode::none, block)),
                           sharded(coded(RecipeName::nvfp4, RecomputeMode::selective, module))}) {
    config.run.steps = 3;
    const std::vector<MetricsRow> kept = Trial(whole(config), 0).train(), visiting = Trial(config, 300).train();
    ASSERT_EQ(std::ssize(kept), config.run.steps);
    ASSERT_EQ(kept.size(), visiting.size());
    for (std::size_t i = 0; i < kept.size(); ++i) {
      ASSERT_EQ(kept[i].loss, visiting[i].loss) << "step " << i + 1;
      ASSERT_EQ(kept[i].grad_norm, visiting[i].grad_norm) << "step " << i + 1;
    }
  }
}

/// Gradients of an embedding and of a head that are larger than the layers between them. In the next micro-batch one
/// finds the other at the other end of their memory, and so do the parts that ranks send.
TEST(FullSharding, LargeGradientsOfTwoMicroBatchesDoNotMeet) {
  for (const GradientWire wire : {GradientWire::fp32, GradientWire::bf16}) {
    RunConfig config = sharded(test::base(Compute::bf16), 1);
    config.model.tied_head = false;
    config.model.ffn = std::int64_t{8};
    config.reduce.order = ReduceOrder::batch;
    config.reduce.wire = wire;
    config.run.steps = 3;
    derive(config);
    RunConfig awaited = whole(config);
    awaited.proof.reduce_overlap = false;
    const std::vector<MetricsRow> one = Trial(awaited, 0).train(), two = Trial(config, 300).train();
    ASSERT_EQ(std::ssize(one), config.run.steps);
    ASSERT_EQ(one.size(), two.size());
    for (std::size_t i = 0; i < one.size(); ++i) {
      ASSERT_EQ(one[i].loss, two[i].loss) << "step " << i + 1;
      ASSERT_EQ(one[i].grad_norm, two[i].grad_norm) << "step " << i + 1;
    }
  }
}

/// ParamSync executes lists, not a sharding: schedules that no rule makes give the same bits.
TEST(Schedules, ThatNoRuleMakesChangeNoBit) {
  if (mpi().size() == 1) return;
  for (RunConfig config : {sharded(test::dense(Compute::bf16)),
                           sharded(coded(RecipeName::mxfp8, RecomputeMode::selective, GatherGranularity::module)),
                           sharded(coded(RecipeName::mxfp8, RecomputeMode::full, GatherGranularity::block))}) {
    config.run.steps = 3;
    config.eval.every_steps = 1;
    const std::vector<MetricsRow> planned = Trial(config, 0, 4).train();
    for (const auto& change : {test::prefetch_two_ahead, test::keep_one_group}) {
      Trial run(config, 300, 4, [&](RunPlan& plan) { change(plan.schedule); });
      EXPECT_EQ(check(run.plan().schedule, run.plan().sync_inputs()), std::vector<std::string>());
      const std::vector<MetricsRow> rows = run.train();
      ASSERT_EQ(rows.size(), planned.size());
      for (std::size_t i = 0; i < rows.size(); ++i) {
        ASSERT_EQ(rows[i].loss, planned[i].loss) << "step " << i + 1;
        ASSERT_EQ(rows[i].grad_norm, planned[i].grad_norm) << "step " << i + 1;
        ASSERT_EQ(rows[i].eval_loss, planned[i].eval_loss) << "step " << i + 1;
      }
      std::int64_t planes = 0;
      run.training().engine().sync().inspect(run.device().compute(), [&](const Plane&) { ++planes; });
      EXPECT_GT(planes, 3);
    }
  }
}

class Small : public testing::Test {
 protected:
  explicit Small() : run(sharded(test::mixture(Compute::bf16)), 0) { run.train(); }
  ParamSync& sync() { return run.training().engine().sync(); }
  Stream& stream() { return run.device().compute(); }
  const std::vector<Access>& accesses() const { return run.plan().usage.evaluation; }
  Use operand(const Access& access) { return sync().operand(stream(), access.param, access.side); }
  void visit(const Access& access) { static_cast<void>(operand(access)); }

  Trial run;
};
using FullShardingCalls = Small;

TEST_F(FullShardingCalls, AnAccessOutOfOrderIsRefused) {
  if (mpi().size() == 1) return;
  EXPECT_THROW(visit(accesses().front()), StateError) << "no pass is under way";
  const Forward pass = sync().forward(stream());
  EXPECT_THROW(visit(accesses().back()), StateError) << "the head comes last";
  EXPECT_NO_THROW(visit(accesses().front()));
}

TEST_F(FullShardingCalls, WhatIsInUseIsNotReleased) {
  if (mpi().size() == 1) return;
  const auto group_of = [&](const Access& access) { return run.plan().layout.group_of(access.param); };
  const auto second = std::ranges::find_if(accesses(), [&](const Access& access) {
    return group_of(access) != group_of(accesses().front());
  });
  Forward pass = sync().forward(stream());
  {
    const Use use = operand(accesses().front());
    EXPECT_THROW(visit(*second), StateError);
  }
  EXPECT_NO_THROW(visit(*second));
}

/// Poisons slots between visits: nothing may read more of a slot than its visit has gathered.
TEST_F(FullShardingCalls, SlotsMayHoldAnythingBetweenVisits) {
  const auto evaluate = [&] {
    Engine& engine = run.training().engine();
    HostSequences batch = {{}, {}, run.plan().sizes.micro};
    batch.ids.resize(static_cast<std::size_t>(batch.sequences * run.plan().sizes.length), 5);
    batch.targets = batch.ids;
    return engine.report(engine.evaluate(batch)).sums.front().loss;
  };
  const double before = evaluate();
  if (mpi().size() > 1)
    sync().visit_planes([&](const Plane& plane) {
      fill(stream(), plane.values, std::numeric_limits<double>::quiet_NaN());
    });
  EXPECT_EQ(evaluate(), before);
}

TEST_F(FullShardingCalls, EveryRankSeesTheSameWeights) {
  ReplicaCheck check(run.device(), run.plan());
  EXPECT_TRUE(check.differences(stream(), sync(), run.control(), 1).empty());
  bool spoil = mpi().rank() == 1;
  sync().observe([&](Stream& at, const Plane& plane) {
    if (std::exchange(spoil, false)) fill(at, plane.values.flat(5, 1), 77);
  });
  EXPECT_EQ(check.differences(stream(), sync(), run.control(), 1).empty(), mpi().size() == 1);
}

}  // namespace
}  // namespace tessera
