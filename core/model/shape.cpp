#include "core/model/shape.hpp"

#include <algorithm>
#include <cmath>

#include "core/config/config.hpp"

namespace tessera {
namespace {

KeepRules keep_rules(const RecomputeConfig& config) {
  KeepRules rules;
  if (config.mode == RecomputeMode::full) rules.block = Keep::input;
  if (config.mode != RecomputeMode::selective) return rules;
  for (RecomputeModule module : config.modules.get()) switch (module) {
      case RecomputeModule::attention:
        rules.attention = Keep::input;
        break;
      case RecomputeModule::mlp:
        rules.mlp = Keep::input;
        break;
      case RecomputeModule::norm:
        rules.norm = Keep::input;
        break;
      case RecomputeModule::moe:
        rules.moe = Keep::input;
        break;
      case RecomputeModule::activation:
        rules.activation = Keep::input;
        break;
      case RecomputeModule::codes:
        rules.codes = Keep::input;
        break;
    }
  return rules;
}

MoeShape moe_shape(const RunConfig& config, const RankIn& group) {
  const MoeConfig& moe = config.model.moe.value();
  const DType logits = moe.logits == RouterLogits::bf16 ? DType::bf16 : DType::f32;
  return {.experts = moe.experts,
          .top_k = moe.top_k,
          .renormalize = moe.renormalize,
          .weights = moe.weights,
          .balance_coef = moe.balance_coef,
          .z_coef = moe.z_coef,
          .group = group,
          .rows = config.proof.expert_rows,
          .room = config.parallel.expert > 1 ? config.parallel.expert_room.get() : 0,
          .ffn = moe.ffn,
          .blocks = moe.blocks(),
          .shared_ffn = moe.shared_ffn,
          .shared_gate = moe.shared_gate,
          .rule = {moe.scores, logits, moe.scale, moe.groups, moe.top_groups},
          .balance_over = moe.balance_over,
          .bias = moe.bias,
          .capacity = moe.capacity};
}

}  // namespace

std::int64_t MoeShape::slots_of_sequence(std::int64_t length) const {
  if (capacity == 0) return 0;
  const double share = static_cast<double>(length * top_k) / static_cast<double>(experts);
  // A whole number that a decimal factor misses by a rounding stays what it is.
  const auto slots = std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(capacity * share * (1 - 1e-12))));
  return slots < length ? slots : 0;
}

ArrivalShape MoeShape::arrival(std::int64_t tokens, std::int64_t row_multiple) const {
  // A token goes at most once to an expert, so at most min(k, held) times to a rank.
  const std::int64_t most = group.size * tokens * std::min(top_k, held()), share = tokens * top_k;
  const double asked = std::ceil(room * static_cast<double>(share));
  const bool ample = room == 0 || asked >= static_cast<double>(most);
  return {group.size, group.rank, experts, row_multiple, share, ample ? most : static_cast<std::int64_t>(asked)};
}

GptShape GptShape::from(const RunConfig& config, const RankIn& experts) {
  const ModelConfig& model = config.model;
  GptShape shape;
  shape.layers = model.layers;
  shape.hidden = model.hidden;
  shape.heads = model.heads;
  shape.kv_heads = model.kv_heads;
  shape.head_dim = model.head_dim;
  shape.rope_dim = model.rope_dim;
  shape.ffn = model.ffn;
  shape.seq_len = model.seq_len;
  shape.vocabulary = model.vocab;
  shape.norm = model.norm;
  shape.position = model.position;
  shape.eps = model.norm_eps;
  shape.rope_base = model.rope_base;
  if (const auto& scaling = model.rope_scaling)
    shape.rope_scaling = {scaling->factor, scaling->low_freq_factor, scaling->high_freq_factor,
                          static_cast<double>(scaling->original_seq_len)};
  shape.activation = model.activation;
  shape.bias = model.bias;
  shape.qkv_bias = model.qkv_bias;
  shape.qk_norm = model.qk_norm;
  shape.qk_norm_over = model.qk_norm_over;
  shape.tied_head = model.tied_head;
  if (model.moe) shape.moe = moe_shape(config, experts);
  shape.compute = config.precision.compute == Compute::bf16 ? DType::bf16 : DType::f32;
  shape.accumulation = config.precision.fuse_wgrad ? Accumulation::fused : Accumulation::unfused;
  shape.keep = keep_rules(config.recompute);
  return shape;
}

}  // namespace tessera
