#pragma once
#include <vector>

#include "core/config/config.hpp"

/// Configs of runs small enough to be planned and trained for some steps in any test.
namespace tessera::test {

/// The config from which the others are made: two layers, not yet derived.
inline RunConfig base(Compute compute) {
  RunConfig config;
  config.run.seed = 42;
  config.run.steps = 4;
  config.model.layers = 2;
  config.model.hidden = 32;
  config.model.heads = 4;
  config.model.seq_len = 24;
  config.data.files = {"in memory"};
  config.batch = {.global = 12, .micro = 1};  // 12 sequences are shared evenly by 1, 2, 3 and 4 ranks
  config.eval = {.batches = 2};
  config.reduce.bucket_mib = 0.004;  // about a thousand elements, so that there are many groups
  config.optimizer.lr = 0.01;
  config.optimizer.warmup_steps = 2;
  config.precision.compute = compute;
  return config;
}

inline RunConfig dense(Compute compute) {
  RunConfig config = base(compute);
  config.model.tied_head = true;
  derive(config);
  return config;
}

/// The same with the other choice of most model keys (rms, rotary, swiglu, grouped queries), and with experts.
inline RunConfig mixture(Compute compute) {
  RunConfig config = base(compute);
  config.model.norm = Norm::rms;
  config.model.position = Position::rotary;
  config.model.activation = Activation::swiglu;
  config.model.kv_heads = std::int64_t{2};
  config.model.ffn = std::int64_t{40};
  config.model.moe = MoeConfig{};
  config.model.moe->experts = 4;
  config.model.moe->top_k = 2;
  derive(config);
  return config;
}

inline std::vector<RunConfig> models() {
  return {dense(Compute::bf16), dense(Compute::fp32), mixture(Compute::bf16), mixture(Compute::fp32)};
}

}  // namespace tessera::test
