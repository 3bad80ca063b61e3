#include <algorithm>

#include "core/config/config.hpp"
#include "kernels/base/index.hpp"
#include "kernels/formats/registry.hpp"

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

/// Whether sending codes takes fewer bytes than bf16: one copy suffices, since the other is derived from it.
bool travels_smaller_as_codes(const RunConfig& config) {
  const std::optional<FormatId> format = find_format(name_of(config.precision.recipe));
  return format && traits_of(*format).columnwise != formats::Columnwise::requantized;
}

}  // namespace

bool stages_values(const RunConfig& config) {
  const bool codes = config.proof.wire == GatherWire::quantized || config.sharding == Sharding::full;
  if (config.precision.primary_weights == PrimaryWeights::bf16 || codes) return false;
  return config.proof.wire == GatherWire::bf16 || !travels_smaller_as_codes(config);
}

bool ships_both_copies(const RunConfig& config) {
  const bool codes = config.proof.wire == GatherWire::quantized || config.sharding == Sharding::full;
  return config.precision.primary_weights == PrimaryWeights::quantized && codes && !travels_smaller_as_codes(config);
}

bool gathers_modules(const RunConfig& config) {
  if (config.gather.granularity != GatherGranularity::automatic)
    return config.gather.granularity == GatherGranularity::module;
  return ships_both_copies(config) && config.recompute.mode == RecomputeMode::selective;
}

double ample_room(const RunConfig& config) {
  const auto& moe = config.model.moe;
  const std::int64_t ranks = config.parallel.expert;
  if (!moe || moe->top_k <= 0 || ranks <= 0) return 1;
  const std::int64_t held = std::max<std::int64_t>(1, moe->experts / ranks);
  return static_cast<double>(ranks * std::min(moe->top_k, held)) / static_cast<double>(moe->top_k);
}

void derive(RunConfig& config) {
  derive_model(config.model, config.data.kind);
  using Modules = std::vector<RecomputeModule>;
  const bool selective = config.recompute.mode == RecomputeMode::selective;
  config.recompute.modules.fill(selective ? Modules{RecomputeModule::attention} : Modules{});
  const bool plain = config.precision.recipe == RecipeName::bf16;
  config.precision.primary_weights.fill(plain ? PrimaryWeights::bf16 : PrimaryWeights::quantized);
  const bool tile = ships_both_copies(config) || (config.sharding == Sharding::full && !plain);
  config.proof.cuts.fill(tile ? GatherCuts::tile : GatherCuts::flat);
  config.parallel.expert_room.fill(ample_room(config));
  const DataConfig& data = config.data;
  const bool divided = data.kind == DataKind::text && data.eval_files.empty() && data.mixture.empty();
  config.data.eval_fraction.fill(divided ? 0.05 : 0.0);
  config.checkpoint.dir.fill("runs/" + config.run.name);
  config.checkpoint.io.fill(config.checkpoint.async ? CheckpointIo::direct : CheckpointIo::mpio);
}

}  // namespace tessera
