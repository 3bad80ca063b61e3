#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/config/value.hpp"
#include "io/convert/hf_config.hpp"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
void demand(Problems& problems, const std::string& whose, const char* key, const T& value, const T& wanted,
            std::string_view family) {
  if (value != wanted)
    problems.add(Exit::file, fmt::format("{}: {}: {} cannot be expressed: Hugging Face's {} has {}, with which a model "
                                         "to hand over must be trained",
                                         whose, key, deck_text(value), family, deck_text(wanted)));
}

/// Adds a line for each key in which a model differs from what its family has.
class Demands {
 public:
  Demands(Problems& problems, const std::string& whose, Family family)
      : problems_(problems), whose_(whose), name_(name_of(family)) {}
  template <class T, class U> void operator()(const char* key, const T& value, const U& wanted) const {
    demand(problems_, whose_, key, value, T(wanted), name_);
  }
  void refuse(const char* key, const std::string& why) const {
    problems_.add(Exit::file, fmt::format("{}: {}: {}", whose_, key, why));
  }

 private:
  Problems& problems_;
  const std::string& whose_;
  std::string_view name_;
};

/// The family of a mixture: by its scores, its shared expert, and its query and key norm.
Family mixture_of(const ModelConfig& model) {
  const MoeConfig& moe = *model.moe;
  if (moe.scores == Scores::sigmoid) return Family::glm4_moe;
  if (moe.shared_ffn > 0) return Family::qwen2_moe;
  if (!model.qk_norm) return Family::mixtral;
  return model.qk_norm_over == QkNormOver::width ? Family::olmoe : Family::qwen3_moe;
}

Family nearest_family(const ModelConfig& model) {
  return model.moe                             ? mixture_of(model)
         : model.norm == Norm::layer           ? Family::gpt2
         : model.qk_norm                       ? Family::qwen3
         : model.qkv_bias && !model.bias.get() ? Family::qwen2
                                               : Family::llama;
}

void check_mixture(const ModelConfig& model, Family family, const Demands& wants) {
  const MoeConfig& moe = *model.moe;
  const bool glm = family == Family::glm4_moe, qwen2 = family == Family::qwen2_moe;
  const bool everywhere = family == Family::mixtral || family == Family::olmoe;
  if (family == Family::mixtral) {
    wants("model.moe.ffn", moe.ffn.get(), model.ffn.get());
    wants("model.moe.renormalize", moe.renormalize.get(), true);
  }
  if (everywhere) wants("model.moe.first_dense", moe.first_dense, 0);
  if (everywhere || glm) wants("model.moe.every", moe.every, 1);
  wants("model.moe.shared_gate", moe.shared_gate, qwen2);
  if (glm && moe.shared_ffn % moe.ffn != 0)
    wants.refuse("model.moe.shared_ffn",
                 fmt::format("{} cannot be expressed: Hugging Face's glm4_moe has a multiple of model.moe.ffn, {}",
                             moe.shared_ffn, moe.ffn.get()));
  if (glm) return;
  wants("model.moe.scale", moe.scale, 1.0);
  wants("model.moe.top_groups", moe.top_groups.get(), moe.groups);
  wants("model.moe.bias", moe.bias, false);
}

}  // namespace

Family family_of(const ModelConfig& model, const std::string& whose) {
  using enum Family;
  const Family family = nearest_family(model);
  Problems problems;
  const Demands wants(problems, whose, family);
  const auto is = [&](std::initializer_list<Family> some) { return std::ranges::find(some, family) != some.end(); };
  wants("model.norm", model.norm, family == gpt2 ? Norm::layer : Norm::rms);
  wants("model.position", model.position, family == gpt2 ? Position::learned : Position::rotary);
  wants("model.activation", model.activation, family == gpt2 ? Activation::gelu : Activation::swiglu);
  if (family == gpt2) wants("model.kv_heads", model.kv_heads.get(), model.heads);
  if (is({gpt2, olmoe})) wants("model.head_dim", model.head_dim.get(), model.hidden / model.heads);
  if (!is({gpt2, glm4_moe})) wants("model.rope_dim", model.rope_dim.get(), model.head_dim.get());
  if (!is({qwen3, qwen3_moe, olmoe, glm4_moe})) wants("model.qk_norm", model.qk_norm, false);
  if (model.qk_norm && is({qwen3, qwen3_moe, glm4_moe}))
    wants("model.qk_norm_over", model.qk_norm_over, QkNormOver::head);
  if (!is({qwen2, qwen2_moe, glm4_moe}) && !model.bias) wants("model.qkv_bias", model.qkv_bias, false);
  if (family == llama && model.hidden % model.heads != 0)
    wants.refuse("model.heads", fmt::format("{} do not divide hidden {}, which transformers demands", model.heads,
                                            model.hidden));
  if (family != llama) wants("model.bias", model.bias.get(), family == gpt2);
  if (model.moe) check_mixture(model, family, wants);
  problems.raise();
  return family;
}

namespace {

/// The share of a head that turns, from which transformers finds the number of elements by rounding down.
double turned_share(const ModelConfig& model) {
  const auto turned = static_cast<double>(model.rope_dim), head = static_cast<double>(model.head_dim);
  const double share = turned / head;
  return head * share < turned ? std::nextafter(share, 2.0) : share;
}

Json rope_parameters(const ModelConfig& model) {
  Json parameters = {{"rope_type", model.rope_scaling ? "llama3" : "default"}, {"rope_theta", model.rope_base}};
  if (model.rope_dim != model.head_dim) parameters["partial_rotary_factor"] = turned_share(model);
  if (const auto& scaling = model.rope_scaling)
    parameters.update({{"factor", scaling->factor},
                       {"low_freq_factor", scaling->low_freq_factor},
                       {"high_freq_factor", scaling->high_freq_factor},
                       {"original_max_position_embeddings", scaling->original_seq_len}});
  return parameters;
}

/// The keys of a family that has mixtures, beside those that all families but GPT-2 share.
Json mixture_keys(Family family, const ModelConfig& model) {
  const MoeConfig& moe = *model.moe;
  Json json = {{"num_experts_per_tok", moe.top_k}, {"router_aux_loss_coef", moe.balance_coef.get()}};
  if (family == Family::mixtral) {
    json.update({{"num_local_experts", moe.experts}, {"sliding_window", nullptr}});
    return json;
  }
  json["norm_topk_prob"] = moe.renormalize.get();
  if (family == Family::olmoe) {
    json.update({{"num_experts", moe.experts}, {"intermediate_size", moe.ffn.get()}, {"attention_bias", false},
                 {"clip_qkv", nullptr}});
    return json;
  }
  json["moe_intermediate_size"] = moe.ffn.get();
  if (family == Family::glm4_moe) {
    json.update({{"n_routed_experts", moe.experts},
                 {"n_shared_experts", moe.shared_ffn / moe.ffn},
                 {"first_k_dense_replace", moe.first_dense},
                 {"routed_scaling_factor", moe.scale},
                 {"n_group", moe.groups},
                 {"topk_group", moe.top_groups.get()},
                 {"attention_bias", model.qkv_bias},
                 {"use_qk_norm", model.qk_norm},
                 {"partial_rotary_factor", turned_share(model)},
                 {"num_nextn_predict_layers", 0}});
    return json;
  }
  std::vector<std::int64_t> dense(static_cast<std::size_t>(moe.first_dense));
  std::iota(dense.begin(), dense.end(), 0);
  json.update({{"num_experts", moe.experts},
               {"decoder_sparse_step", moe.every},
               {"mlp_only_layers", dense},
               {"use_sliding_window", false}});
  if (family == Family::qwen2_moe)
    json.update({{"shared_expert_intermediate_size", moe.shared_ffn}, {"qkv_bias", model.qkv_bias}});
  else
    json["attention_bias"] = false;
  return json;
}

/// The name of transformers' class of a family's models.
const char* class_of(Family family) {
  switch (family) {
    case Family::gpt2:
      return "GPT2LMHeadModel";
    case Family::mistral:
      return "MistralForCausalLM";
    case Family::mixtral:
      return "MixtralForCausalLM";
    case Family::qwen2:
      return "Qwen2ForCausalLM";
    case Family::qwen3:
      return "Qwen3ForCausalLM";
    case Family::qwen2_moe:
      return "Qwen2MoeForCausalLM";
    case Family::qwen3_moe:
      return "Qwen3MoeForCausalLM";
    case Family::olmoe:
      return "OlmoeForCausalLM";
    case Family::glm4_moe:
      return "Glm4MoeForCausalLM";
    case Family::dots1:
      return "Dots1ForCausalLM";
    case Family::llama:
      break;
  }
  return "LlamaForCausalLM";
}

}  // namespace

std::string hf_config_text(Family family, const ModelConfig& model, DType type, const Json& token_ids) {
  const char* dtype = type == DType::bf16 ? "bfloat16" : "float32";
  Json json = {{"model_type", name_of(family)}, {"architectures", Json::array({class_of(family)})},
               {"vocab_size", model.vocab.get()},
               {"tie_word_embeddings", model.tied_head}, {"bos_token_id", nullptr},
               {"eos_token_id", nullptr}, {"torch_dtype", dtype}};
  json.update(token_ids);
  if (family == Family::gpt2) {
    json.update({{"n_layer", model.layers},
                 {"n_embd", model.hidden},
                 {"n_head", model.heads},
                 {"n_inner", model.ffn.get()},
                 {"n_positions", model.seq_len},
                 {"activation_function", "gelu_new"},
                 {"layer_norm_epsilon", model.norm_eps},
                 {"scale_attn_weights", true},
                 {"attn_pdrop", 0.0},
                 {"embd_pdrop", 0.0},
                 {"resid_pdrop", 0.0}});
    return json.dump(2) + "\n";
  }
  json.update({{"num_hidden_layers", model.layers},
               {"hidden_size", model.hidden},
               {"num_attention_heads", model.heads},
               {"num_key_value_heads", model.kv_heads.get()},
               {"head_dim", model.head_dim.get()},
               {"intermediate_size", model.ffn.get()},
               {"max_position_embeddings", model.seq_len},
               {"hidden_act", "silu"},
               {"rms_norm_eps", model.norm_eps},
               {"rope_theta", model.rope_base},
               {"rope_parameters", rope_parameters(model)},
               {"attention_dropout", 0.0}});
  if (model.rope_scaling) json["rope_scaling"] = rope_parameters(model);
  if (model.moe)
    json.update(mixture_keys(family, model));
  else if (family == Family::llama)
    json.update({{"attention_bias", model.bias.get()}, {"mlp_bias", model.bias.get()}});
  else
    json["use_sliding_window"] = false;
  return json.dump(2) + "\n";
}

}  // namespace tessera
