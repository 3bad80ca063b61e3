#include "core/config/sections/moe.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/config/config.hpp"
#include "core/config/divisors.hpp"
#include "kernels/base/index.hpp"

namespace tessera {
namespace {

/// Groups that a router chooses first.
void check_groups(const MoeConfig& moe, std::vector<Finding>& found) {
  if (!divides(moe.groups, moe.experts)) {
    found.push_back({{"model.moe.groups", "model.moe.experts"},
                     fmt::format("{} does not divide {} experts, of which each group has as many: use {}", moe.groups,
                                 moe.experts, one_of(divisors(moe.experts)))});
  } else if (moe.top_groups > moe.groups) {
    found.push_back({{"model.moe.top_groups", "model.moe.groups"},
                     fmt::format("{} of {} groups: at most all of them", moe.top_groups.get(), moe.groups)});
  } else if (const std::int64_t each = moe.experts / moe.groups; moe.top_groups * each < moe.top_k) {
    found.push_back({{"model.moe.top_groups", "model.moe.groups", "model.moe.top_k"},
                     fmt::format("{} groups of {} experts do not hold the {} that a token visits: use {} or more",
                                 moe.top_groups.get(), each, moe.top_k, ceil_div(moe.top_k, each))});
  }
}

/// Counts of slots are sums in fp32, exact below 2^24. A bias compares them with an expert's even share of a step; a
/// load is one itself, of at most all tokens.
void check_counts(const MoeConfig& moe, const RunConfig& config, std::vector<Finding>& found) {
  if (moe.experts <= 0) return;
  constexpr double most = 1 << 24;
  const double tokens = static_cast<double>(config.batch.global) * static_cast<double>(config.model.seq_len);
  const double share = tokens * static_cast<double>(moe.top_k) / static_cast<double>(moe.experts);
  if (moe.bias && share >= most)
    found.push_back({{"model.moe.bias", "batch.global", "model.seq_len", "model.moe.top_k", "model.moe.experts"},
                     fmt::format("an expert's even share of a step is {:.3g} tokens, and they are counted exactly "
                                 "below {:g} alone: use a smaller batch, more experts, or no bias",
                                 share, most)});
  if (moe.balance_over == BalanceOver::batch && tokens >= most)
    found.push_back({{"model.moe.balance_over", "batch.global", "model.seq_len"},
                     fmt::format("is batch, and a step's {:.3g} tokens are counted exactly below {:g} alone: use a "
                                 "smaller batch, or balance_over sequence",
                                 tokens, most)});
}

}  // namespace

void MoeConfig::derive(const RunConfig& config) {
  ffn.fill(config.model.ffn);
  renormalize.fill(top_k > 1);
  top_groups.fill(groups);
  balance_coef.fill(bias ? 0.0001 : 0.01);
  z_coef.fill(scores == Scores::sigmoid ? 0 : 0.001);
}

void MoeConfig::check(const RunConfig& config, std::vector<Finding>& found) const {
  const std::int64_t layers = config.model.layers;
  if (top_k > experts)
    found.push_back({{"model.moe.top_k", "model.moe.experts"},
                     fmt::format("{} of {} experts: at most all of them", top_k, experts)});
  else if (experts > 0)
    check_groups(*this, found);
  if (layers > 0 && blocks().among(layers) == 0)
    found.push_back({{first_dense >= layers ? "model.moe.first_dense" : "model.moe.every", "model.layers"},
                     fmt::format("leaves none of {} layers with experts: use a smaller one, or leave model.moe out",
                                 layers)});
  if (shared_gate && shared_ffn == 0)
    found.push_back({{"model.moe.shared_gate", "model.moe.shared_ffn"},
                     "there is no shared expert whose answer it could multiply: give shared_ffn its width, or leave "
                     "the gate out"});
  check_counts(*this, config, found);
}

void MoeConfig::advise(const RunConfig&, std::vector<Finding>& found) const {
  if (top_k == 1 && renormalize)
    found.push_back({{"model.moe.renormalize", "model.moe.top_k"},
                     "with top_k 1 every weight is 1 and the router learns from its own losses alone"});
  const double ample = static_cast<double>(experts) / static_cast<double>(std::max<std::int64_t>(top_k, 1));
  if (capacity >= ample)
    found.push_back({{"model.moe.capacity", "model.moe.experts", "model.moe.top_k"},
                     fmt::format("{} drops no token: an expert that takes a whole sequence has {} times its even share",
                                 capacity, ample)});
}

std::span<const Effect> MoeConfig::effects() {
  static constexpr Effect rows[] = {
      {"model.moe.groups", "model.moe.top_groups", "with top_groups below groups",
       [](const RunConfig& c) {
         const auto& moe = c.model.moe;
         return !moe || moe->groups == 1 || moe->top_groups < moe->groups;
       }},
      {"model.moe.balance_over", "model.moe.balance_coef", "with balance_coef above 0",
       [](const RunConfig& c) { return !c.model.moe || c.model.moe->balance_coef > 0; }},
      {"model.moe.bias_rate", "model.moe.bias", "with bias true",
       [](const RunConfig& c) { return !c.model.moe || c.model.moe->bias; }},
  };
  return rows;
}

std::span<const OtherName> MoeConfig::other_names() {
  static constexpr OtherName rows[] = {
      {"num_experts num_local_experts n_routed_experts n_experts", "model.moe.experts", ""},
      {"moe_router_topk num_experts_per_tok experts_per_token", "model.moe.top_k", ""},
      {"moe_intermediate_size moe_ffn_hidden_size moe_inter_dim moe_hidden_dim", "model.moe.ffn", ""},
      {"first_k_dense_replace moe_layer_start_index n_dense_layers", "model.moe.first_dense", ""},
      {"decoder_sparse_step moe_layer_freq interleave_moe_layer_step", "model.moe.every", ""},
      {"shared_expert_intermediate_size moe_shared_expert_intermediate_size", "model.moe.shared_ffn", ""},
      {"num_shared_experts n_shared_experts shared_experts", "model.moe.shared_ffn",
       "shared_ffn is the width of all of them together"},
      {"moe_shared_expert_gate use_shared_expert_gate", "model.moe.shared_gate", ""},
      {"scoring_func score_func moe_router_score_function", "model.moe.scores", "softmax | sigmoid"},
      {"norm_topk_prob route_norm", "model.moe.renormalize", ""},
      {"routed_scaling_factor route_scale moe_router_topk_scaling_factor", "model.moe.scale", ""},
      {"n_group n_expert_groups num_expert_groups moe_router_num_groups", "model.moe.groups", ""},
      {"topk_group n_limited_groups num_limited_groups moe_router_group_topk", "model.moe.top_groups", ""},
      {"moe_router_enable_expert_bias use_expert_bias e_score_correction_bias", "model.moe.bias", ""},
      {"moe_router_bias_update_rate bias_update_speed bias_update_rate", "model.moe.bias_rate", ""},
      {"router_aux_loss_coef moe_aux_loss_coeff aux_loss_coef load_balance_coeff", "model.moe.balance_coef", ""},
      {"moe_z_loss_coeff router_z_loss_coef z_loss_coef", "model.moe.z_coef", ""},
      {"capacity_factor moe_expert_capacity_factor expert_capacity_factor", "model.moe.capacity",
       "of each sequence by itself, the first tokens before later ones; parallel.expert_room bounds memory"},
  };
  return rows;
}

}  // namespace tessera
