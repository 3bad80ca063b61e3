#include <algorithm>

#include "core/config/config.hpp"
#include "core/config/travel.hpp"
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
  if (auto& moe = model.moe) {
    moe->ffn.fill(model.ffn);
    moe->renormalize.fill(moe->top_k > 1);
    moe->top_groups.fill(moe->groups);
    moe->balance_coef.fill(moe->bias ? 0.0001 : 0.01);
    moe->z_coef.fill(moe->scores == Scores::sigmoid ? 0 : 0.001);
  }
}

/// The format of the recipe's codes; bf16 has none.
std::optional<FormatId> codes_of(const RunConfig& config) {
  const RecipeName recipe = config.precision.recipe;
  return recipe == RecipeName::bf16 ? std::nullopt : find_format(name_of(recipe));
}

Travel travel_of(const RunConfig& config) {
  const WeightRules rules{config.precision.primary_weights, config.proof.wire, config.proof.staging, config.sharding};
  return travel_of(codes_of(config), DType::bf16, rules);
}

}  // namespace

bool stages_values(const RunConfig& config) { return travel_of(config) == Travel::bf16; }

bool ships_both_copies(const RunConfig& config) {
  return travel_of(config) == Travel::codes && copies_travel_apart(*codes_of(config));
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
  config.data.seed.fill(config.run.seed);
  config.precision.seed.fill(config.run.seed);
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
