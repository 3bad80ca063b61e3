#include "core/config/config.hpp"
#include "kernels/base/index.hpp"

namespace tessera {
namespace {

void derive_model(ModelConfig& model, DataKind data) {
  model.kv_heads.fill(model.heads);
  if (model.heads > 0 && model.hidden % model.heads == 0) model.head_dim.fill(model.hidden / model.heads);
  const bool gated = model.activation == Activation::swiglu;
  model.ffn.fill(gated ? round_up(ceil_div(8 * model.hidden, 3), 128) : 4 * model.hidden);
  model.bias.fill(model.norm == Norm::layer);
  if (data == DataKind::text) model.vocab.fill(256);
  if (model.moe) model.moe->renormalize.fill(model.moe->top_k > 1);
}

}  // namespace

void derive(RunConfig& config) {
  derive_model(config.model, config.data.kind);
  using Modules = std::vector<RecomputeModule>;
  const bool selective = config.recompute.mode == RecomputeMode::selective;
  config.recompute.modules.fill(selective ? Modules{RecomputeModule::attention} : Modules{});
  config.precision.primary_weights.fill(PrimaryWeights::bf16);
  config.data.eval_fraction.fill(config.data.kind == DataKind::text ? 0.05 : 0.0);
  config.checkpoint.dir.fill("runs/" + config.run.name);
}

}  // namespace tessera
