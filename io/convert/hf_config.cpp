#include "io/convert/hf_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "core/config/value.hpp"
#include "io/files/posix_file.hpp"
#include "io/files/text_file.hpp"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

constexpr double most = 1 << 30;  // of any size in a configuration

/// Keys without a say in what the model computes from its weights: dropout, losses, tokens, bookkeeping.
constexpr std::string_view inert[] = {"_attn_implementation_autoset",
                                      "_name_or_path",
                                      "architectures",
                                      "attention_dropout",
                                      "attn_pdrop",
                                      "bos_token_id",
                                      "chunk_size_feed_forward",
                                      "dtype",
                                      "embd_pdrop",
                                      "eos_token_id",
                                      "finetuning_task",
                                      "gradient_checkpointing",
                                      "id2label",
                                      "initializer_range",
                                      "keys_to_ignore_at_inference",
                                      "label2id",
                                      "model_type",
                                      "n_ctx",
                                      "output_attentions",
                                      "output_hidden_states",
                                      "output_router_logits",
                                      "pad_token_id",
                                      "pretraining_tp",
                                      "problem_type",
                                      "reorder_and_upcast_attn",
                                      "resid_pdrop",
                                      "return_dict",
                                      "router_aux_loss_coef",
                                      "router_jitter_noise",
                                      "sep_token_id",
                                      "summary_activation",
                                      "summary_first_dropout",
                                      "summary_proj_to_labels",
                                      "summary_type",
                                      "summary_use_proj",
                                      "task_specific_params",
                                      "tokenizer_class",
                                      "torch_dtype",
                                      "torchscript",
                                      "transformers_version",
                                      "unk_token_id",
                                      "use_cache"};

/// config.json, key by key. Absent keys have transformers' defaults; every complaint is kept.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& path)
      : path_(path), json_(Json::parse(read_text_file(path), nullptr, false)) {
    if (!json_.is_object()) throw Error(Exit::file, path.string() + ": is no JSON object");
  }

  void refuse(const std::string& key, const std::string& why) {
    problems_.add(Exit::file, path_.string() + ": " + key + ": " + why);
  }
  bool has(const std::string& key) {
    seen_.insert(key);
    return json_.contains(key) && !json_[key].is_null();
  }
  std::int64_t size(const std::string& key, std::int64_t otherwise) {
    if (!has(key)) return otherwise;
    const Json& value = json_[key];
    if (value.is_number_integer() && value.get<double>() >= 1 && value.get<double>() <= most) return value;
    refuse(key, value.dump() + " is no size");
    return 1;
  }
  double number(const std::string& key, double otherwise) {
    if (!has(key)) return otherwise;
    if (json_[key].is_number()) return json_[key];
    refuse(key, json_[key].dump() + " is no number");
    return otherwise;
  }
  bool truth(const std::string& key, bool otherwise) {
    if (!has(key)) return otherwise;
    if (json_[key].is_boolean()) return json_[key];
    refuse(key, json_[key].dump() + " is neither true nor false");
    return otherwise;
  }
  /// The key must have one of these values; `otherwise` is what its absence means.
  void expect(const std::string& key, const Json& otherwise, const std::vector<Json>& allowed) {
    const Json value = has(key) ? json_[key] : otherwise;
    if (std::ranges::find(allowed, value) != allowed.end()) return;
    std::string list;
    for (const Json& one : allowed) list += (list.empty() ? "" : " or ") + one.dump();
    refuse(key,
           fmt::format("{}{}, and this program's models have {}", value.dump(), has(key) ? "" : " by default", list));
  }
  const Json& operator[](const std::string& key) { return json_[key]; }

  /// Throws when anything was refused, or a key was never asked for.
  void finish() {
    for (const auto& [key, value] : json_.items())
      if (!value.is_null() && !seen_.contains(key) && std::ranges::find(inert, key) == std::end(inert))
        refuse(key, "unknown here; what it changes would be lost");
    problems_.raise();
  }

 private:
  std::filesystem::path path_;
  Json json_;
  std::set<std::string> seen_;
  Problems problems_;
};

/// The base of plain rotary positions, as transformers 4 (rope_theta, rope_scaling) or 5 (rope_parameters) says it.
double rope_base(Reader& reader, double otherwise) {
  if (reader.has("rope_scaling")) {
    const Json& scaling = reader["rope_scaling"];
    const Json type = scaling.is_object() ? scaling.value("rope_type", scaling.value("type", Json())) : Json();
    if (type != "default") reader.refuse("rope_scaling", scaling.dump() + ": frequencies here are never scaled");
  }
  double base = reader.number("rope_theta", otherwise);
  if (!reader.has("rope_parameters")) return base;
  const Json& parameters = reader["rope_parameters"];
  if (!parameters.is_object()) {
    reader.refuse("rope_parameters", "is no object");
    return base;
  }
  for (const auto& [key, value] : parameters.items()) {
    const std::string name = "rope_parameters." + key;
    const bool plain = value.is_null() || (key == "rope_type" && value == "default") ||
                       (key == "partial_rotary_factor" && value == 1.0);
    if (key == "rope_theta" && value.is_number())
      base = value;
    else if (!plain)
      reader.refuse(name, value.dump() + ": positions here are plain rotary ones");
  }
  if (reader.has("rope_theta") && reader.number("rope_theta", base) != base)
    reader.refuse("rope_theta", "differs from rope_parameters.rope_theta");
  return base;
}

ModelConfig gpt2(Reader& reader) {
  ModelConfig model;
  model.layers = reader.size("n_layer", 12);
  model.hidden = reader.size("n_embd", 768);
  model.heads = reader.size("n_head", 12);
  model.kv_heads = model.heads;
  model.ffn = reader.size("n_inner", 4 * model.hidden);
  model.seq_len = reader.size("n_positions", 1024);
  model.vocab = reader.size("vocab_size", 50257);
  model.norm = Norm::layer;
  model.position = Position::learned;
  model.activation = Activation::gelu;
  model.bias = true;
  model.tied_head = reader.truth("tie_word_embeddings", true);
  reader.expect("layer_norm_epsilon", 1e-5, {norm_eps});
  reader.expect("activation_function", "gelu_new", {"gelu_new", "gelu_pytorch_tanh"});
  reader.expect("scale_attn_weights", true, {true});
  reader.expect("scale_attn_by_inverse_layer_idx", false, {false});
  reader.expect("add_cross_attention", false, {false});
  return model;
}

/// What Llama and Mixtral have in common.
ModelConfig rotary(Reader& reader, double default_base, double default_eps) {
  ModelConfig model;
  model.layers = reader.size("num_hidden_layers", 32);
  model.hidden = reader.size("hidden_size", 4096);
  model.heads = reader.size("num_attention_heads", 32);
  if (reader.has("head_dim")) model.head_dim = reader.size("head_dim", 1);
  model.vocab = reader.size("vocab_size", 32000);
  model.norm = Norm::rms;
  model.position = Position::rotary;
  model.rope_base = rope_base(reader, default_base);
  model.activation = Activation::swiglu;
  model.tied_head = reader.truth("tie_word_embeddings", false);
  reader.expect("rms_norm_eps", default_eps, {norm_eps});
  reader.expect("hidden_act", "silu", {"silu"});
  return model;
}

ModelConfig llama(Reader& reader) {
  ModelConfig model = rotary(reader, 10000, 1e-6);
  model.kv_heads = reader.size("num_key_value_heads", model.heads);
  model.ffn = reader.size("intermediate_size", 11008);
  model.seq_len = reader.size("max_position_embeddings", 2048);
  const bool in_attention = reader.truth("attention_bias", false), in_mlp = reader.truth("mlp_bias", false);
  model.bias = in_attention && in_mlp;
  if (in_attention != in_mlp)
    reader.refuse("attention_bias",
                  fmt::format("{} while mlp_bias is {}: this program's models have biases in both or in neither",
                              in_attention, in_mlp));
  return model;
}

ModelConfig mixtral(Reader& reader) {
  ModelConfig model = rotary(reader, 1e6, 1e-5);
  model.kv_heads = reader.size("num_key_value_heads", 8);
  model.ffn = reader.size("intermediate_size", 14336);
  model.seq_len = reader.size("max_position_embeddings", 131072);
  model.bias = false;
  reader.expect("sliding_window", nullptr, {nullptr});
  MoeConfig moe;
  moe.experts = reader.size("num_local_experts", 8);
  moe.top_k = reader.size("num_experts_per_tok", 2);
  moe.renormalize = true;
  model.moe = moe;
  return model;
}

RunConfig run_of(const ModelConfig& model, const std::string& name) {
  RunConfig config;
  config.run.name = name;
  config.model = model;
  config.data.kind = DataKind::tokens;
  config.data.files = {"*.bin"};
  config.batch = {1, 1};
  derive(config);
  return config;
}

template <class T>
void demand(Problems& problems, const std::string& whose, const char* key, const T& value, const T& wanted,
            std::string_view family) {
  if (value != wanted)
    problems.add(Exit::file, fmt::format("{}: {}: {} cannot be expressed: Hugging Face's {} has {}", whose, key,
                                         deck_text(value), family, deck_text(wanted)));
}

}  // namespace

ForeignModel read_hf_config(const std::filesystem::path& path) {
  Reader reader(path);
  const std::string type =
      reader.has("model_type") && reader["model_type"].is_string() ? reader["model_type"].get<std::string>() : "";
  const auto family = choice_named<Family>(type);
  if (!family)
    throw Error(Exit::file, fmt::format("{}: model_type: \"{}\", and this program reads gpt2, llama and mixtral",
                                        path.string(), type));
  const ModelConfig model = *family == Family::gpt2    ? gpt2(reader)
                            : *family == Family::llama ? llama(reader)
                                                       : mixtral(reader);
  for (const char* key : {"is_decoder", "is_encoder_decoder", "tie_encoder_decoder", "cross_attention_hidden_size",
                          "pruned_heads", "quantization_config", "use_bfloat16"})
    if (reader.has(key) && !reader[key].empty() && reader[key] != false)
      reader.refuse(key, reader[key].dump() + ", which this program's models do not have");
  const RunConfig config = run_of(model, std::string(name_of(*family)));
  for (const Finding& finding : check(config)) reader.refuse(finding.keys.front(), finding.text);
  reader.finish();
  return {*family, config};
}

Family family_of(const ModelConfig& model, const std::string& whose) {
  const Family family = model.moe ? Family::mixtral : model.norm == Norm::rms ? Family::llama : Family::gpt2;
  const std::string_view name = name_of(family);
  Problems problems;
  const auto wants = [&](const char* key, const auto& value, const auto& wanted) {
    demand(problems, whose, key, value, wanted, name);
  };
  wants("model.norm", model.norm, family == Family::gpt2 ? Norm::layer : Norm::rms);
  wants("model.position", model.position, family == Family::gpt2 ? Position::learned : Position::rotary);
  wants("model.activation", model.activation, family == Family::gpt2 ? Activation::gelu : Activation::swiglu);
  if (family == Family::gpt2) {
    wants("model.kv_heads", model.kv_heads.get(), model.heads);
    wants("model.head_dim", model.head_dim.get(), model.hidden / model.heads);
  }
  if (family == Family::llama && model.hidden % model.heads != 0)
    problems.add(Exit::file, fmt::format("{}: model.heads: {} do not divide hidden {}, which transformers demands",
                                         whose, model.heads, model.hidden));
  if (family != Family::llama) wants("model.bias", model.bias.get(), family == Family::gpt2);
  if (model.moe) wants("model.moe.renormalize", model.moe->renormalize.get(), true);
  problems.raise();
  return family;
}

std::string hf_config_text(Family family, const ModelConfig& model, DType type) {
  const char* dtype = type == DType::bf16 ? "bfloat16" : "float32";
  Json json = {
      {"model_type", name_of(family)}, {"vocab_size", model.vocab.get()}, {"tie_word_embeddings", model.tied_head},
      {"bos_token_id", nullptr},       {"eos_token_id", nullptr},         {"torch_dtype", dtype}};
  if (family == Family::gpt2) {
    json.update({{"architectures", Json::array({"GPT2LMHeadModel"})},
                 {"n_layer", model.layers},
                 {"n_embd", model.hidden},
                 {"n_head", model.heads},
                 {"n_inner", model.ffn.get()},
                 {"n_positions", model.seq_len},
                 {"activation_function", "gelu_new"},
                 {"layer_norm_epsilon", norm_eps},
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
               {"rms_norm_eps", norm_eps},
               {"rope_theta", model.rope_base},
               {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", model.rope_base}}},
               {"attention_dropout", 0.0}});
  if (model.moe)
    json.update({{"architectures", Json::array({"MixtralForCausalLM"})},
                 {"num_local_experts", model.moe->experts},
                 {"num_experts_per_tok", model.moe->top_k},
                 {"sliding_window", nullptr},
                 {"router_aux_loss_coef", model.moe->balance_coef}});
  else
    json.update({{"architectures", Json::array({"LlamaForCausalLM"})},
                 {"attention_bias", model.bias.get()},
                 {"mlp_bias", model.bias.get()}});
  return json.dump(2) + "\n";
}

}  // namespace tessera
