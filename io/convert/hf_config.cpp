#include "io/convert/hf_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "core/config/value.hpp"
#include "io/convert/json_file.hpp"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

constexpr double most = 1 << 30;  // largest allowed size in a configuration

/// Keys that do not affect what the model computes from its weights: dropout, losses, tokens, bookkeeping.
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

/// A key that other programs add and that affects nothing that is computed: whatever its value, or with one value.
struct Harmless {
  std::string_view key;  ///< with a '*' at its end: all that begin like this
  std::optional<Json> value = {};
};
/// The further keys that are taken, and told. They are notes of the programs that wrote or trained the model, the
/// choice among kernels of one result, and what text generation draws by. Others are values that say "none".
const std::vector<Harmless>& harmless() {
  static const std::vector<Harmless> list = [] {
    std::vector<Harmless> keys;
    for (const char* note : {"_attn_implementation", "_attn_implementation_internal", "_commit_hash",
                             "_flash_attn_2_enabled", "_from_model_config", "transformers.js_config",
                             "is_llama_config", "unsloth_*", "trl_*", "peft_version",
                             "model_name", "license", "library_name", "base_model", "tags", "max_sequence_length",
                             "model_max_length", "bos_token", "eos_token", "pad_token", "unk_token", "vocab_file",
                             "use_flash_attn", "use_flash_attention", "attn_implementation", "onnx*",
                             "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id", "max_length",
                             "min_length", "max_new_tokens", "do_sample", "early_stopping", "num_beams",
                             "num_beam_groups", "diversity_penalty", "temperature", "top_k", "top_p", "typical_p",
                             "repetition_penalty", "length_penalty", "no_repeat_ngram_size",
                             "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences",
                             "output_scores", "return_dict_in_generate", "remove_invalid_values",
                             "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens", "prefix",
                             "embedding_dropout", "hidden_dropout", "classifier_dropout", "dropout",
                             "neftune_noise_alpha", "tf_legacy_loss"})
      keys.push_back({note});
    for (const char* none : {"rope_interleaved", "use_qk_norm", "qk_layernorm", "use_mrope",
                             "attention_bias", "mlp_bias", "add_cross_attention", "parallel_attn", "alibi"})
      keys.push_back({none, false});
    for (const char* one : {"partial_rotary_factor", "rotary_pct", "embedding_multiplier", "residual_multiplier",
                            "logits_scaling", "logit_scale"})
      keys.push_back({one, 1.0});
    return keys;
  }();
  return list;
}
bool is_harmless(std::string_view key, const Json& value) {
  return std::ranges::any_of(harmless(), [&](const Harmless& known) {
    const bool begins = known.key.ends_with('*') && key.starts_with(known.key.substr(0, known.key.size() - 1));
    return (begins || key == known.key) && (!known.value || *known.value == value);
  });
}

/// Reads config.json key by key. Absent keys get transformers' defaults. Collects all complaints for finish().
class Reader {
 public:
  explicit Reader(const std::filesystem::path& path) : path_(path), json_(read_json_object(path)) {}

  void refuse(const std::string& key, const std::string& why) {
    problems_.add(Exit::file, path_.string() + ": " + key + ": " + why);
  }
  bool has(const std::string& key) {
    seen_.insert(key);
    return json_.contains(key) && !json_[key].is_null();
  }
  /// Whether the key is present with the value null, which differs from an absent key.
  bool says_null(const std::string& key) {
    seen_.insert(key);
    return json_.contains(key) && json_[key].is_null();
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
  /// Reads a norm's epsilon, which is added to a mean square.
  double small(const std::string& key, double otherwise) {
    const double value = number(key, otherwise);
    if (value >= 1e-30 && value <= 1) return value;
    refuse(key, fmt::format("{}, and must be at least 1e-30 and at most 1", value));
    return otherwise;
  }
  bool truth(const std::string& key, bool otherwise) {
    if (!has(key)) return otherwise;
    if (json_[key].is_boolean()) return json_[key];
    refuse(key, json_[key].dump() + " is neither true nor false");
    return otherwise;
  }
  /// Complains unless the key has one of the `allowed` values; an absent key has the value `otherwise`.
  void expect(const std::string& key, const Json& otherwise, const std::vector<Json>& allowed) {
    const Json value = has(key) ? json_[key] : otherwise;
    if (std::ranges::find(allowed, value) != allowed.end()) return;
    std::string list;
    for (const Json& one : allowed) list += (list.empty() ? "" : " or ") + one.dump();
    refuse(key,
           fmt::format("{}{}, and this program's models have {}", value.dump(), has(key) ? "" : " by default", list));
  }
  const Json& operator[](const std::string& key) { return json_[key]; }
  /// Adds what a user should know of a model that is taken.
  void tell(const std::string& what) { told_ += (told_.empty() ? "" : "; ") + what; }

  /// Throws Error{file} with all complaints, and with the keys that nothing has read and that may matter. Returns what
  /// a user should know, as one line, or nothing.
  std::string finish() {
    std::string passed;
    for (const auto& [key, value] : json_.items()) {
      if (value.is_null() || seen_.contains(key) || std::ranges::find(inert, key) != std::end(inert)) continue;
      if (is_harmless(key, value))
        passed += (passed.empty() ? "" : ", ") + key;
      else
        refuse(key, value.dump().substr(0, 60) +
                        ": unknown here, and the model may depend on it; a key that does not matter may be taken out "
                        "of a copy of the folder");
    }
    problems_.raise();
    if (!passed.empty()) tell("passed over, since they change nothing that is computed: " + passed);
    return told_.empty() ? "" : path_.string() + ": " + told_;
  }

 private:
  std::filesystem::path path_;
  Json json_;
  std::set<std::string> seen_;
  std::string told_;
  Problems problems_;
};

/// Reads an object that describes the scaling of rotary positions: none, or Llama 3's.
void read_scaling(Reader& reader, const std::string& name, ModelConfig& model) {
  const Json& said = reader[name];
  if (!said.is_object()) return reader.refuse(name, "is no object");
  const Json type = said.value("rope_type", said.value("type", Json("default")));
  RopeScalingConfig scaling;
  double original = 0;
  const std::pair<const char*, double*> numbers[] = {{"factor", &scaling.factor},
                                                     {"low_freq_factor", &scaling.low_freq_factor},
                                                     {"high_freq_factor", &scaling.high_freq_factor},
                                                     {"original_max_position_embeddings", &original}};
  for (const auto& [key, value] : said.items()) {
    const auto number = std::ranges::find(numbers, key, [](const auto& one) { return std::string(one.first); });
    const bool known = value.is_null() || key == "rope_type" || key == "type" || key == "rope_theta" ||
                       (key == "partial_rotary_factor" && value == 1.0);
    if (type == "llama3" && number != std::end(numbers) && value.is_number())
      *number->second = value;
    else if (!known)
      reader.refuse(name + "." + key, value.dump() + ": positions here are plain rotary ones, or Llama 3's");
  }
  if (type != "llama3" && type != "default")
    return reader.refuse(name + ".rope_type", type.dump() + ": frequencies here are plain, or scaled as Llama 3's are");
  if (type == "default") return;
  scaling.original_seq_len = static_cast<std::int64_t>(original);
  if (!(scaling.factor >= 1) || original < 1)
    reader.refuse(name, said.dump() + ": needs a factor from 1 on and original_max_position_embeddings");
  model.rope_scaling = scaling;
}

/// Reads rotary positions as transformers 4 (rope_theta, rope_scaling) or 5 (rope_parameters) writes them.
void read_rope(Reader& reader, double otherwise, ModelConfig& model) {
  if (reader.has("rope_scaling")) read_scaling(reader, "rope_scaling", model);
  model.rope_base = reader.number("rope_theta", otherwise);
  if (!reader.has("rope_parameters")) return;
  const auto before = model.rope_scaling;
  read_scaling(reader, "rope_parameters", model);
  if (before && model.rope_scaling != before) reader.refuse("rope_scaling", "differs from rope_parameters");
  const Json& parameters = reader["rope_parameters"];
  if (!parameters.is_object() || !parameters.contains("rope_theta") || !parameters["rope_theta"].is_number()) return;
  const double base = parameters["rope_theta"];
  if (reader.has("rope_theta") && model.rope_base != base)
    reader.refuse("rope_theta", "differs from rope_parameters.rope_theta");
  model.rope_base = base;
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
  model.norm_eps = reader.small("layer_norm_epsilon", 1e-5);
  reader.expect("activation_function", "gelu_new", {"gelu_new", "gelu_pytorch_tanh"});
  reader.expect("scale_attn_weights", true, {true});
  reader.expect("scale_attn_by_inverse_layer_idx", false, {false});
  reader.expect("add_cross_attention", false, {false});
  return model;
}

/// Reads the keys that Llama, Mistral, Mixtral and Qwen share.
ModelConfig rotary(Reader& reader, double default_base, double default_eps) {
  ModelConfig model;
  model.layers = reader.size("num_hidden_layers", 32);
  model.hidden = reader.size("hidden_size", 4096);
  model.heads = reader.size("num_attention_heads", 32);
  if (reader.has("head_dim")) model.head_dim = reader.size("head_dim", 1);
  model.vocab = reader.size("vocab_size", 32000);
  model.norm = Norm::rms;
  model.position = Position::rotary;
  read_rope(reader, default_base, model);
  model.activation = Activation::swiglu;
  model.tied_head = reader.truth("tie_word_embeddings", false);
  model.norm_eps = reader.small("rms_norm_eps", default_eps);
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

/// Reads the keys that Mistral and Mixtral share, with the defaults of both.
ModelConfig of_mistral_sizes(Reader& reader, double rope_base, double eps) {
  ModelConfig model = rotary(reader, rope_base, eps);
  model.kv_heads = reader.size("num_key_value_heads", 8);
  model.ffn = reader.size("intermediate_size", 14336);
  model.seq_len = reader.size("max_position_embeddings", 131072);
  model.bias = false;
  return model;
}

/// Reads Qwen 2 and 3.
ModelConfig qwen(Reader& reader, Family family) {
  ModelConfig model = rotary(reader, 10000, 1e-6);
  model.kv_heads = reader.size("num_key_value_heads", 32);
  model.ffn = reader.size("intermediate_size", 22016);
  model.seq_len = reader.size("max_position_embeddings", 32768);
  model.bias = false;
  model.qkv_bias = family == Family::qwen2;
  model.qk_norm = family == Family::qwen3;
  if (family == Family::qwen3) {
    if (!model.head_dim.known()) model.head_dim = 128;
    reader.expect("attention_bias", false, {false});
  }
  return model;
}

ModelConfig mixtral(Reader& reader) {
  ModelConfig model = of_mistral_sizes(reader, 1e6, 1e-5);
  MoeConfig moe;
  moe.experts = reader.size("num_local_experts", 8);
  moe.top_k = reader.size("num_experts_per_tok", 2);
  moe.renormalize = true;
  model.moe = moe;
  return model;
}

/// Whether some layers let a token see only those within its window: by layer_types or Qwen's max_window_layers, and
/// never with use_sliding_window: false.
bool some_layers_slide(Reader& reader, Family family, std::int64_t layers) {
  const bool qwen = family == Family::qwen2 || family == Family::qwen3;
  const bool off = reader.has("use_sliding_window") && !reader.truth("use_sliding_window", true);
  bool slide = reader.truth("use_sliding_window", !qwen);
  const double whole = reader.number("max_window_layers", 28);  // the layers before it see all
  if (qwen && whole >= static_cast<double>(layers)) slide = false;
  if (!reader.has("layer_types")) return slide;
  const Json& types = reader["layer_types"];
  bool listed = false;
  for (const Json& type : types.is_array() ? types : Json::array({types})) {
    if (type != "full_attention" && type != "sliding_attention")
      reader.refuse("layer_types", type.dump() + ": layers here see the whole text, or a window as long as it");
    listed = listed || type == "sliding_attention";
  }
  return listed && !off;
}

/// Reads the window within which a token sees others. One as long as the model's sequences changes nothing; with a
/// shorter one the model has the window's length. Returns the length of such a window; 0: none.
std::int64_t read_window(Reader& reader, Family family, ModelConfig& model) {
  const bool usual = family == Family::mistral && !reader.says_null("sliding_window");
  const bool has = reader.has("sliding_window");
  const bool slides = some_layers_slide(reader, family, model.layers);
  if (!slides || (!has && !usual)) return 0;
  const std::int64_t window = reader.size("sliding_window", 4096);
  if (window >= model.seq_len) return 0;
  reader.tell(fmt::format("sliding_window is {}, and max_position_embeddings {}: taken as a model of sequences of {}, "
                          "within which a window changes nothing",
                          window, model.seq_len, window));
  model.seq_len = window;
  return window;
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
    throw Error(Exit::file, fmt::format("{}: model_type: \"{}\", and this program reads gpt2, llama, mistral, mixtral, "
                                        "qwen2 and qwen3",
                                        path.string(), type));
  ModelConfig model = *family == Family::gpt2      ? gpt2(reader)
                      : *family == Family::llama   ? llama(reader)
                      : *family == Family::mistral ? of_mistral_sizes(reader, 10000, 1e-6)
                      : *family == Family::mixtral ? mixtral(reader)
                                                   : qwen(reader, *family);
  const std::int64_t window = *family == Family::gpt2 ? 0 : read_window(reader, *family, model);
  for (const char* key : {"is_decoder", "is_encoder_decoder", "tie_encoder_decoder", "cross_attention_hidden_size",
                          "pruned_heads", "quantization_config", "use_bfloat16"})
    if (reader.has(key) && !reader[key].empty() && reader[key] != false)
      reader.refuse(key, reader[key].dump() + ", which this program's models do not have");
  const RunConfig config = run_of(model, std::string(name_of(*family)));
  for (const Finding& finding : check(config)) reader.refuse(finding.keys.front(), finding.text);
  return {*family, config, reader.finish(), window};
}

Family family_of(const ModelConfig& model, const std::string& whose) {
  const Family family = model.moe                                 ? Family::mixtral
                        : model.norm == Norm::layer               ? Family::gpt2
                        : model.qk_norm                           ? Family::qwen3
                        : model.qkv_bias && !model.bias.get()     ? Family::qwen2
                                                                  : Family::llama;
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
  if (family != Family::qwen3) wants("model.qk_norm", model.qk_norm, false);
  if (family != Family::qwen2 && !model.bias) wants("model.qkv_bias", model.qkv_bias, false);
  if (family == Family::llama && model.hidden % model.heads != 0)
    problems.add(Exit::file, fmt::format("{}: model.heads: {} do not divide hidden {}, which transformers demands",
                                         whose, model.heads, model.hidden));
  if (family != Family::llama) wants("model.bias", model.bias.get(), family == Family::gpt2);
  if (const auto& moe = model.moe) {
    wants("model.moe.ffn", moe->ffn.get(), model.ffn.get());
    wants("model.moe.first_dense", moe->first_dense, std::int64_t{0});
    wants("model.moe.every", moe->every, std::int64_t{1});
    wants("model.moe.shared_ffn", moe->shared_ffn, std::int64_t{0});
    wants("model.moe.scores", moe->scores, Scores::softmax);
    wants("model.moe.renormalize", moe->renormalize.get(), true);
    wants("model.moe.scale", moe->scale, 1.0);
    wants("model.moe.top_groups", moe->top_groups.get(), moe->groups);
    wants("model.moe.bias", moe->bias, false);
  }
  problems.raise();
  return family;
}

namespace {

Json rope_parameters(const ModelConfig& model) {
  Json parameters = {{"rope_type", model.rope_scaling ? "llama3" : "default"}, {"rope_theta", model.rope_base}};
  if (const auto& scaling = model.rope_scaling)
    parameters.update({{"factor", scaling->factor},
                       {"low_freq_factor", scaling->low_freq_factor},
                       {"high_freq_factor", scaling->high_freq_factor},
                       {"original_max_position_embeddings", scaling->original_seq_len}});
  return parameters;
}

}  // namespace

std::string hf_config_text(Family family, const ModelConfig& model, DType type, const Json& token_ids) {
  const char* dtype = type == DType::bf16 ? "bfloat16" : "float32";
  Json json = {{"model_type", name_of(family)}, {"vocab_size", model.vocab.get()},
               {"tie_word_embeddings", model.tied_head}, {"bos_token_id", nullptr},
               {"eos_token_id", nullptr}, {"torch_dtype", dtype}};
  json.update(token_ids);
  if (family == Family::gpt2) {
    json.update({{"architectures", Json::array({"GPT2LMHeadModel"})},
                 {"n_layer", model.layers},
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
  if (family == Family::qwen2 || family == Family::qwen3)
    json.update({{"architectures", Json::array({family == Family::qwen2 ? "Qwen2ForCausalLM" : "Qwen3ForCausalLM"})},
                 {"use_sliding_window", false}});
  else if (model.moe)
    json.update({{"architectures", Json::array({"MixtralForCausalLM"})},
                 {"num_local_experts", model.moe->experts},
                 {"num_experts_per_tok", model.moe->top_k},
                 {"sliding_window", nullptr},
                 {"router_aux_loss_coef", model.moe->balance_coef.get()}});
  else
    json.update({{"architectures", Json::array({"LlamaForCausalLM"})},
                 {"attention_bias", model.bias.get()},
                 {"mlp_bias", model.bias.get()}});
  return json.dump(2) + "\n";
}

}  // namespace tessera
