// Refusals that depend on what the back end's kernels take.
#include <gtest/gtest.h>

#include "core/plan/plan.hpp"
#include "kernels/base/runtime.hpp"
#include "kernels/gemm/gemm.hpp"
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

}  // namespace
}  // namespace tessera
