#pragma once
#include <array>
#include <random>

#include "tests/support/small_runs.hpp"

/// Configs of an untied model of two blocks, by the choices that decide what is gathered and reduced.
namespace tessera::test::untied {

using Mode = RecomputeMode;
using enum GatherGranularity;

inline RunConfig model(RunConfig config, RecipeName recipe) {
  config.model.tied_head = false;
  config.model.hidden = 64;
  config.model.seq_len = 32;
  config.model.ffn = std::int64_t{64};
  if (config.model.moe) config.model.moe->ffn = std::int64_t{64};
  config.model.head_dim = std::int64_t{16};
  config.precision.recipe = recipe;
  config.precision.primary_weights = recipe == RecipeName::bf16 ? PrimaryWeights::bf16 : PrimaryWeights::quantized;
  config.proof.cuts = GatherCuts::flat;
  config.reduce.bucket_mib = 0.15;
  return config;
}
inline RunConfig dense(RecipeName recipe = RecipeName::bf16) { return model(test::dense(Compute::bf16), recipe); }
inline RunConfig mixture(RecipeName recipe = RecipeName::bf16) { return model(test::mixture(Compute::bf16), recipe); }

inline RunConfig full(RunConfig config, Mode mode = Mode::none, GatherGranularity granularity = block) {
  config.sharding = Sharding::full;
  config.gather.granularity = granularity;
  config.proof.cuts = config.precision.recipe == RecipeName::bf16 ? GatherCuts::flat : GatherCuts::tile;
  config.recompute.mode = mode;
  config.recompute.modules = std::vector{RecomputeModule::attention};
  return config;
}
/// With so many micro-batches a rank, on two ranks.
inline RunConfig times(int micro_batches, RunConfig config) {
  config.batch = {.global = 2 * micro_batches, .micro = 1};
  return config;
}

/// A config drawn from all choices that decide what is gathered and reduced.
inline RunConfig drawn(std::mt19937& random, int ranks) {
  const auto pick = [&](auto... of) {
    const std::array all{of...};
    return all[random() % all.size()];
  };
  using enum RecipeName;
  const RecipeName recipe =
      pick(bf16, fp8_block, fp8_tensor, mxfp8, mxfp8_2d, mxfp6_e3m2, mxfp4, mxfp4_2d, nvfp4, nvfp4_46);
  RunConfig config = pick(0, 1) ? dense(recipe) : mixture(recipe);
  config.reduce.order = pick(ReduceOrder::rank, ReduceOrder::batch);
  const bool idle = config.reduce.order == ReduceOrder::batch && pick(0, 1) == 1;
  if (config.reduce.order == ReduceOrder::batch) {
    config.reduce.wire = pick(GradientWire::fp32, GradientWire::bf16, GradientWire::mxfp8, GradientWire::fp8_block);
    if (pick(0, 1)) config.reduce.keep = {KeptGradients::norms, KeptGradients::embedding};
  }
  config.batch = {.global = ranks * pick(1, 2, 3) + (idle ? 1 : 0), .micro = 1};
  config.reduce.bucket_mib = pick(0.01, 0.05, 0.15, 25.0);
  config.model.tied_head = pick(0, 1) == 1;
  if (pick(0, 1)) config = full(config, pick(Mode::none, Mode::selective, Mode::full), pick(block, module));
  config.recompute.mode = pick(Mode::none, Mode::selective, Mode::full);
  config.recompute.modules = std::vector{RecomputeModule::attention};
  config.proof.gather_overlap = pick(0, 1) == 1;
  config.proof.reduce_overlap = pick(0, 1) == 1;
  if (config.model.moe && ranks % 2 == 0) config.parallel.expert = pick(1, 2);
  const int group = pick(0, 0, 1, 2);
  if (group > 0 && ranks % group == 0 && group % config.parallel.expert == 0) config.parallel.sharding_group = group;
  const bool coded = recipe != bf16;
  if (coded && pick(0, 1)) config.optimizer.matrices = MatrixRule::muon;
  if (coded && config.sharding == Sharding::optimizer) {
    config.proof.wire = pick(GatherWire::automatic, GatherWire::bf16);
    config.proof.cuts = pick(GatherCuts::flat, GatherCuts::tile);
    if (config.proof.wire == GatherWire::bf16)
      config.proof.staging = pick(GatherStaging::alias_grads, GatherStaging::ring);
  }
  return config;
}

}  // namespace tessera::test::untied
