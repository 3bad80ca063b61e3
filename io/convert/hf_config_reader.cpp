#include "io/convert/hf_config_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

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
/// The further keys that are taken, and told. They are notes of the programs that wrote or trained the model, and the
/// choice among kernels of one result. Others are what text generation draws by, and values that say "none".
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

}  // namespace

HfConfigReader::HfConfigReader(const std::filesystem::path& path) : path_(path), json_(read_json_object(path)) {}

void HfConfigReader::refuse(const std::string& key, const std::string& why) {
  problems_.add(Exit::file, path_.string() + ": " + key + ": " + why);
}

bool HfConfigReader::has(const std::string& key) {
  seen_.insert(key);
  return json_.contains(key) && !json_[key].is_null();
}

bool HfConfigReader::says_null(const std::string& key) {
  seen_.insert(key);
  return json_.contains(key) && json_[key].is_null();
}

std::int64_t HfConfigReader::size(const std::string& key, std::int64_t otherwise, std::int64_t least) {
  if (!has(key)) return otherwise;
  const Json& value = json_[key];
  const double number = value.is_number_integer() ? value.get<double>() : -1;
  if (number >= static_cast<double>(least) && number <= most) return value;
  refuse(key, value.dump() + " is no size");
  return least;
}

double HfConfigReader::number(const std::string& key, double otherwise) {
  if (!has(key)) return otherwise;
  if (json_[key].is_number()) return json_[key];
  refuse(key, json_[key].dump() + " is no number");
  return otherwise;
}

double HfConfigReader::small(const std::string& key, double otherwise) {
  const double value = number(key, otherwise);
  if (value >= 1e-30 && value <= 1) return value;
  refuse(key, fmt::format("{}, and must be at least 1e-30 and at most 1", value));
  return otherwise;
}

bool HfConfigReader::truth(const std::string& key, bool otherwise) {
  if (!has(key)) return otherwise;
  if (json_[key].is_boolean()) return json_[key];
  refuse(key, json_[key].dump() + " is neither true nor false");
  return otherwise;
}

void HfConfigReader::expect(const std::string& key, const Json& otherwise, const std::vector<Json>& allowed) {
  const Json value = has(key) ? json_[key] : otherwise;
  if (std::ranges::find(allowed, value) != allowed.end()) return;
  std::string list;
  for (const Json& one : allowed) list += (list.empty() ? "" : " or ") + one.dump();
  refuse(key,
         fmt::format("{}{}, and this program's models have {}", value.dump(), has(key) ? "" : " by default", list));
}

std::string HfConfigReader::finish() {
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

}  // namespace tessera
