#include "io/convert/hf_config.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "io/convert/hf_config_reader.hpp"

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;
using Reader = HfConfigReader;

/// Whether heads of a family may turn in part.
bool turns_in_part(Family family) { return family == Family::glm4_moe; }

/// Reads an object that describes the scaling of rotary positions: none, or Llama 3's.
void read_scaling(Reader& reader, const std::string& name, Family family, ModelConfig& model) {
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
                       (key == "partial_rotary_factor" && (turns_in_part(family) || value == 1.0));
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

/// Reads the share of each head that turns, where it may be a part of it.
void read_turned(Reader& reader, ModelConfig& model) {
  constexpr const char* key = "partial_rotary_factor";
  double share = reader.number(key, 0.5);
  if (reader.has("rope_parameters") && reader["rope_parameters"].is_object())
    if (const Json& inner = reader["rope_parameters"]; inner.contains(key) && inner[key].is_number()) {
      if (reader.has(key) && inner[key] != share)
        reader.refuse(key, "differs from rope_parameters.partial_rotary_factor");
      share = inner[key];
    }
  if (!(share > 0) || share > 1) return reader.refuse(key, fmt::format("{} is no share of a head", share));
  const std::int64_t head = model.head_dim.known() ? model.head_dim.get() : model.hidden / model.heads;
  model.rope_dim = static_cast<std::int64_t>(static_cast<double>(head) * share);
}

/// Reads rotary positions as transformers 4 (rope_theta, rope_scaling) or 5 (rope_parameters) writes them.
void read_rope(Reader& reader, Family family, double otherwise, ModelConfig& model) {
  if (reader.has("rope_scaling")) read_scaling(reader, "rope_scaling", family, model);
  model.rope_base = reader.number("rope_theta", otherwise);
  if (turns_in_part(family)) read_turned(reader, model);
  if (!reader.has("rope_parameters")) return;
  const auto before = model.rope_scaling;
  read_scaling(reader, "rope_parameters", family, model);
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

/// Reads the keys that all families but GPT-2 share.
ModelConfig rotary(Reader& reader, Family family, double default_base, double default_eps) {
  ModelConfig model;
  model.layers = reader.size("num_hidden_layers", 32);
  model.hidden = reader.size("hidden_size", 4096);
  model.heads = reader.size("num_attention_heads", 32);
  if (reader.has("head_dim")) model.head_dim = reader.size("head_dim", 1);
  model.vocab = reader.size("vocab_size", 32000);
  model.norm = Norm::rms;
  model.position = Position::rotary;
  read_rope(reader, family, default_base, model);
  model.activation = Activation::swiglu;
  model.tied_head = reader.truth("tie_word_embeddings", false);
  model.norm_eps = reader.small("rms_norm_eps", default_eps);
  reader.expect("hidden_act", "silu", {"silu"});
  return model;
}

ModelConfig llama(Reader& reader) {
  ModelConfig model = rotary(reader, Family::llama, 10000, 1e-6);
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
ModelConfig of_mistral_sizes(Reader& reader, Family family, double rope_base, double eps) {
  ModelConfig model = rotary(reader, family, rope_base, eps);
  model.kv_heads = reader.size("num_key_value_heads", 8);
  model.ffn = reader.size("intermediate_size", 14336);
  model.seq_len = reader.size("max_position_embeddings", 131072);
  model.bias = false;
  return model;
}

/// Reads Qwen 2 and 3.
ModelConfig qwen(Reader& reader, Family family) {
  ModelConfig model = rotary(reader, family, 10000, 1e-6);
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
  ModelConfig model = of_mistral_sizes(reader, Family::mixtral, 1e6, 1e-5);
  MoeConfig moe;
  moe.experts = reader.size("num_local_experts", 8);
  moe.top_k = reader.size("num_experts_per_tok", 2);
  moe.renormalize = true;
  model.moe = moe;
  return model;
}

/// Reads the blocks that have experts: all but mlp_only_layers, and of these every decoder_sparse_step-th.
void read_sparse_blocks(Reader& reader, std::int64_t layers, MoeConfig& moe) {
  constexpr const char* key = "mlp_only_layers";
  moe.every = reader.size("decoder_sparse_step", 1);
  if (!reader.has(key)) return;
  const Json& dense = reader[key];
  if (!dense.is_array()) return reader.refuse(key, dense.dump() + " is no list of layers");
  const auto listed = [&](std::int64_t block) { return std::ranges::find(dense, Json(block)) != dense.end(); };
  while (moe.first_dense < layers && listed(moe.first_dense)) ++moe.first_dense;
  for (std::int64_t block = moe.first_dense; block < layers; ++block)
    if (listed(block) && moe.blocks().contain(block))
      return reader.refuse(key, dense.dump() + ": dense layers here are the first ones, and those between "
                                               "decoder_sparse_step");
}

/// Reads the mixtures of Qwen 2 and 3.
ModelConfig qwen_moe(Reader& reader, Family family) {
  const bool second = family == Family::qwen2_moe;
  ModelConfig model = rotary(reader, family, 10000, 1e-6);
  model.kv_heads = reader.size("num_key_value_heads", second ? 16 : 4);
  model.ffn = reader.size("intermediate_size", second ? 5632 : 6144);
  model.seq_len = reader.size("max_position_embeddings", 32768);
  model.bias = false;
  model.qkv_bias = second && reader.truth("qkv_bias", true);
  model.qk_norm = !second;
  if (!second) reader.expect("attention_bias", false, {false});
  MoeConfig moe;
  moe.experts = reader.size("num_local_experts", reader.size("num_experts", second ? 60 : 128));
  moe.top_k = reader.size("num_experts_per_tok", second ? 4 : 8);
  moe.ffn = reader.size("moe_intermediate_size", second ? 1408 : 768);
  moe.renormalize = reader.truth("norm_topk_prob", false);
  if (second) moe.shared_ffn = reader.size("shared_expert_intermediate_size", 5632);
  moe.shared_gate = second;
  read_sparse_blocks(reader, model.layers, moe);
  model.moe = moe;
  return model;
}

ModelConfig olmoe(Reader& reader) {
  ModelConfig model = rotary(reader, Family::olmoe, 10000, 1e-5);
  model.kv_heads = reader.size("num_key_value_heads", model.heads);
  model.ffn = reader.size("intermediate_size", 2048);
  model.seq_len = reader.size("max_position_embeddings", 4096);
  model.bias = false;
  model.qk_norm = true;
  model.qk_norm_over = QkNormOver::width;
  reader.expect("attention_bias", false, {false});
  reader.expect("clip_qkv", nullptr, {nullptr});
  MoeConfig moe;
  moe.experts = reader.size("num_experts", reader.size("num_local_experts", 64));
  moe.top_k = reader.size("num_experts_per_tok", 8);
  moe.renormalize = reader.truth("norm_topk_prob", false);
  model.moe = moe;
  return model;
}

/// Reads GLM 4.5 and dots.llm1, whose router is DeepSeek-V3's.
ModelConfig with_sigmoids(Reader& reader, Family family) {
  const bool glm = family == Family::glm4_moe;
  ModelConfig model = rotary(reader, family, 10000, glm ? 1e-5 : 1e-6);
  model.kv_heads = reader.size("num_key_value_heads", glm ? 8 : model.heads);
  model.ffn = reader.size("intermediate_size", 10944);
  model.seq_len = reader.size("max_position_embeddings", glm ? 131072 : 2048);
  model.bias = false;
  model.qk_norm = !glm || reader.truth("use_qk_norm", false);
  if (glm)
    model.qkv_bias = reader.truth("attention_bias", false);
  else
    reader.expect("attention_bias", false, {false});
  MoeConfig moe;
  moe.scores = Scores::sigmoid;
  moe.bias = true;
  moe.experts = reader.size("n_routed_experts", reader.size("num_local_experts", 128));
  moe.top_k = reader.size("num_experts_per_tok", 8);
  moe.ffn = reader.size("moe_intermediate_size", 1408);
  moe.renormalize = reader.truth("norm_topk_prob", glm);
  moe.first_dense = reader.size("first_k_dense_replace", glm ? 1 : 0, 0);
  moe.scale = reader.number("routed_scaling_factor", 1);
  moe.groups = reader.size("n_group", 1);
  moe.top_groups = reader.size("topk_group", 1);
  moe.shared_ffn = moe.ffn * reader.size("n_shared_experts", glm ? 1 : 0, 0);
  model.moe = moe;
  for (const char* key : {"num_nextn_predict_layers", "num_mtp_layers"})
    if (glm && reader.size(key, 0, 0) > 0)
      reader.tell(fmt::format("{} is {}: layers that predict further tokens are left out", key, reader[key].dump()));
  return model;
}

/// Whether some layers let a token see only those within its window: by layer_types or Qwen's max_window_layers, and
/// never with use_sliding_window: false.
bool some_layers_slide(Reader& reader, Family family, std::int64_t layers) {
  const bool dots = family == Family::dots1, qwen = family == Family::qwen2 || family == Family::qwen3;
  const bool mixture = family == Family::qwen2_moe || family == Family::qwen3_moe;
  const bool off = reader.has("use_sliding_window") && !reader.truth("use_sliding_window", true);
  bool slide = reader.truth("use_sliding_window", !qwen && !mixture);
  const double whole = reader.number("max_window_layers", dots ? 62 : 28);  // the layers before it see all
  if ((qwen || dots) && whole >= static_cast<double>(layers)) slide = false;
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
  const bool usual = (family == Family::mistral || family == Family::dots1) && !reader.says_null("sliding_window");
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
  config.batch = {.global = 1, .micro = 1};
  derive(config);
  return config;
}

/// "gpt2, llama, ... and dots1".
std::string families_text() {
  std::string text;
  for (const Name<Family>& one : Names<Family>::table)
    text += (text.empty() ? "" : &one == std::end(Names<Family>::table) - 1 ? " and " : ", ") + std::string(one.text);
  return text;
}

ModelConfig read_model(Reader& reader, Family family) {
  switch (family) {
    case Family::gpt2:
      return gpt2(reader);
    case Family::llama:
      return llama(reader);
    case Family::mistral:
      return of_mistral_sizes(reader, family, 10000, 1e-6);
    case Family::mixtral:
      return mixtral(reader);
    case Family::qwen2:
    case Family::qwen3:
      return qwen(reader, family);
    case Family::qwen2_moe:
    case Family::qwen3_moe:
      return qwen_moe(reader, family);
    case Family::olmoe:
      return olmoe(reader);
    case Family::glm4_moe:
    case Family::dots1:
      return with_sigmoids(reader, family);
  }
  throw Error(Exit::internal, "read_model: a family without a reader");
}

/// Refuses other blocks than those that are read. Scales fit many sizes of blocks by their shapes alone.
void require_blocks(Reader& reader, const std::string& key, const nlohmann::ordered_json& blocks) {
  if (!blocks.is_null() && blocks != nlohmann::ordered_json({128, 128}))
    reader.refuse(key, blocks.dump() + ", and scales of blocks of [128,128] are read");
}

/// What a folder of codes says of them. Which layout a weight has, its tensors say.
void read_quantization(Reader& reader) {
  constexpr const char* key = "quantization_config";
  if (!reader.has(key) || reader[key].empty()) return;
  const auto& said = reader[key];
  const std::string method = said.is_object() && said.contains("quant_method") && said["quant_method"].is_string()
                                 ? said["quant_method"].get<std::string>()
                                 : "";
  if (method != "fp8" && method != "compressed-tensors" && method != "modelopt")
    reader.refuse(key, said.dump() + ", whose quant_method is none of fp8, compressed-tensors and modelopt");
  else if (said.contains("weight_block_size"))
    require_blocks(reader, std::string(key) + ".weight_block_size", said["weight_block_size"]);
}

}  // namespace

ForeignModel read_hf_config(const std::filesystem::path& path) {
  Reader reader(path);
  const std::string type =
      reader.has("model_type") && reader["model_type"].is_string() ? reader["model_type"].get<std::string>() : "";
  const auto family = choice_named<Family>(type);
  if (!family)
    throw Error(Exit::file, fmt::format("{}: model_type: \"{}\", and this program reads {}", path.string(), type,
                                        families_text()));
  ModelConfig model = read_model(reader, *family);
  const std::int64_t window = *family == Family::gpt2 ? 0 : read_window(reader, *family, model);
  for (const char* key : {"is_decoder", "is_encoder_decoder", "tie_encoder_decoder", "cross_attention_hidden_size",
                          "pruned_heads", "use_bfloat16"})
    if (reader.has(key) && !reader[key].empty() && reader[key] != false)
      reader.refuse(key, reader[key].dump() + ", which this program's models do not have");
  read_quantization(reader);
  const RunConfig config = run_of(model, std::string(name_of(*family)));
  for (const Finding& finding : check(config)) reader.refuse(finding.keys.front(), finding.text);
  return {*family, config, reader.finish(), window};
}

}  // namespace tessera
