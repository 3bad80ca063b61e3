#include "app/training/tell/utilisation.hpp"

#include <gtest/gtest.h>

#include "tests/support/small_runs.hpp"

namespace tessera {
namespace {

RunConfig untied() {
  RunConfig config = test::dense(Compute::bf16);
  config.model.tied_head = false;
  return config;
}

TEST(Peak, IsKnownOrThereIsNone) {
  EXPECT_DOUBLE_EQ(peak_of("NVIDIA H200", Compute::bf16)->flops, 989.4e12);
  EXPECT_DOUBLE_EQ(peak_of("NVIDIA H200", Compute::fp32)->flops, 66.9e12);
  EXPECT_EQ(peak_of("NVIDIA H200", Compute::bf16)->device, "NVIDIA H200");
  for (const char* unknown : {"", "NVIDIA H2", "NVIDIA H200 of tomorrow", "Intel(R) Xeon(R) Processor"})
    EXPECT_FALSE(peak_of(unknown, Compute::bf16)) << unknown;
}

TEST(Utilisation, IsTheShareOfAllRanksPeak) {
  RunPlan plan = resolve(untied(), 2, 0);
  plan.model_flops_per_step = 3e12;
  EXPECT_DOUBLE_EQ(utilisation(plan, {"", 1e12}, 2), 0.75);
  EXPECT_EQ(utilisation_text(plan, std::nullopt),
            "no MFU: the peak of this hardware is not known, and run.mfu_peak does not say it");
  EXPECT_EQ(utilisation_text(plan, Peak{"Abacus", 1e12}),
            "MFU: FLOPs of the model in a step / (seconds x ranks x peak): 3 TFLOP, 2 ranks, 1 TFLOP/s (Abacus, "
            "dense bf16)");
  EXPECT_NE(utilisation_text(plan, Peak{"laptop", 0.05e12}).find(", 0.05 TFLOP/s (laptop"), std::string::npos);
}

/// FLOPs counted by hand: products of a layer's weights with each token, three times (forward and two gradients), and
/// attention. Its scores are computed again in backward.
TEST(ModelFlops, AreThoseOfTheFormula) {
  const RunConfig config = untied();
  const double C = 32, F = 128, V = static_cast<double>(config.model.vocab), T = 24, tokens = 12 * T;
  const double weights = 2 * (3 * C * C + C * C + 2 * C * F) + V * C;
  const double attention = 2 * 2.0 * 7 * (T * (T + 1) / 2) * C * 12;
  for (int ranks : {1, 2, 4})
    EXPECT_DOUBLE_EQ(resolve(config, ranks, 0).model_flops_per_step, 3 * 2 * weights * tokens + attention) << ranks;
}

TEST(ModelFlops, AreThoseOfTheModelWhateverTheRecipe) {
  RunConfig config = test::mixture(Compute::bf16);
  config.model.hidden = 256;
  config.model.seq_len = 32;
  config.model.ffn = config.model.moe->ffn = 256;
  const RunPlan plain = resolve(config, 2, 0);
  for (RecipeName recipe : {RecipeName::fp8_block, RecipeName::mxfp8, RecipeName::nvfp4}) {
    config.precision.recipe = recipe;
    const RunPlan coded = resolve(config, 2, 0);
    EXPECT_EQ(coded.model_flops_per_step, plain.model_flops_per_step) << name_of(recipe);
    EXPECT_EQ(coded.flops_per_step, plain.flops_per_step) << name_of(recipe);
  }
}

TEST(ModelFlops, LeaveRecomputationOut) {
  RunConfig config = untied();
  const RunPlan none = resolve(config, 2, 0);
  EXPECT_EQ(none.flops_per_step, none.model_flops_per_step);
  config.recompute.mode = RecomputeMode::full;
  const RunPlan full = resolve(config, 2, 0);
  EXPECT_EQ(full.model_flops_per_step, none.model_flops_per_step);
  EXPECT_GT(full.flops_per_step, 1.1 * none.flops_per_step);
  EXPECT_LT(full.sizes.activation_bytes, none.sizes.activation_bytes) << "what is counted aside takes no memory";
}

}  // namespace
}  // namespace tessera
