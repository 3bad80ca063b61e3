#include <gtest/gtest.h>

#include "core/config/divisors.hpp"
#include "tests/support/drawn_configs.hpp"
#include "tests/support/trial.hpp"

/// Sharding groups: replicas of what the ranks of a group keep between them.
namespace tessera {
namespace {

using test::mpi;
using test::Trial;

/// Configs of every kind of cuts and wires, with several rounds of gradients.
std::vector<RunConfig> some_ways() {
  using enum RecipeName;
  namespace draw = test::untied;
  std::vector<RunConfig> all;
  for (RecipeName recipe : {bf16, fp8_block, nvfp4})
    for (bool full : {false, true})
      for (MatrixRule rule : {MatrixRule::adamw, MatrixRule::muon}) {
        RunConfig config = full ? draw::full(draw::mixture(recipe), RecomputeMode::full, GatherGranularity::module)
                                : draw::dense(recipe);
        if (full && mpi().size() % 2 == 0) config.parallel.expert = 2;
        config.optimizer.matrices = rule;
        config.reduce.order = ReduceOrder::batch;
        config.batch = {.global = 2 * mpi().size(), .micro = 1};
        config.run.steps = 2;
        config.parallel.expert_room = {};
        derive(config);
        all.push_back(config);
      }
  return all;
}

/// The numbers of ranks that a group of these ranks may have.
std::vector<std::int64_t> group_sizes(const RunConfig& config) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t n : divisors(mpi().size()))
    if (n % config.parallel.expert == 0) sizes.push_back(n);
  return sizes;
}

TEST(ShardingGroups, OfAnySizeGiveTheSameBitsUnderDelays) {
  for (RunConfig config : some_ways()) {
    const std::vector<MetricsRow> expected = Trial(config, 0).train();
    for (std::int64_t ranks : group_sizes(config)) {
      config.parallel.sharding_group = ranks;
      Trial run(config, 100);
      const std::vector<MetricsRow> rows = run.train();
      ASSERT_EQ(rows.size(), expected.size());
      for (std::size_t i = 0; i < rows.size(); ++i) {
        ASSERT_EQ(rows[i].loss, expected[i].loss) << ranks << " ranks in a group, step " << i + 1;
        ASSERT_EQ(rows[i].grad_norm, expected[i].grad_norm) << ranks << " ranks in a group, step " << i + 1;
      }
      EXPECT_EQ(run.late_allocations(), 0);
      for (std::size_t c = 0; c < run.plan().memory.size(); ++c)
        EXPECT_EQ(run.device().memory()[c], run.plan().memory[c]) << name_of(static_cast<Category>(c));
    }
  }
}

}  // namespace
}  // namespace tessera
