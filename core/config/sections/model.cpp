#include "core/config/sections/model.hpp"

#include <fmt/format.h>

#include "core/config/config.hpp"
#include "core/config/divisors.hpp"
#include "kernels/base/index.hpp"

namespace tessera {
namespace {

void check_attention(const ModelConfig& model, std::vector<Finding>& found) {
  if (!model.head_dim.known())
    found.push_back({{"model.heads", "model.hidden", "model.head_dim"},
                     fmt::format("{} heads do not divide hidden {}: change one of them, or give model.head_dim",
                                 model.heads, model.hidden)});
  else if (model.position == Position::rotary && model.rope_dim > model.head_dim)
    found.push_back({{"model.rope_dim", "model.head_dim"},
                     fmt::format("{} of a head's {} elements cannot be turned: use at most head_dim, or leave it out",
                                 model.rope_dim.get(), model.head_dim.get())});
  else if (model.position == Position::rotary && model.rope_dim % 2 != 0 && model.rope_dim != model.head_dim)
    found.push_back({{"model.rope_dim", "model.position"},
                     fmt::format("{} is odd, and position rotary turns pairs: use {}", model.rope_dim.get(),
                                 model.rope_dim + 1)});
  else if (model.position == Position::rotary && model.rope_dim % 2 != 0)
    found.push_back({{"model.head_dim", "model.position", "model.heads", "model.hidden"},
                     fmt::format("{} is odd, and position rotary turns pairs: make it even, or turn fewer of them by "
                                 "model.rope_dim",
                                 model.head_dim.get())});
  if (!divides(model.kv_heads, model.heads))
    found.push_back({{"model.kv_heads", "model.heads"},
                     fmt::format("{} does not divide heads {}", model.kv_heads.get(), model.heads)});
}

/// Refuses sizes whose products would overflow 64 bits; no machine could hold such a model.
void check_size(const ModelConfig& m, std::int64_t micro, std::vector<Finding>& found) {
  constexpr double most = 1e15;
  const auto real = [](std::int64_t n) { return static_cast<double>(n); };
  const double head_dim = m.head_dim.known() ? real(m.head_dim) : 0, vocab = m.vocab.known() ? real(m.vocab) : 0;
  const double heads = (2 * real(m.heads) + 2 * real(m.kv_heads)) * head_dim, inner = 3 * real(m.ffn);
  const double mixtures = m.moe ? real(m.moe->blocks().among(m.layers)) : 0, dense = real(m.layers) - mixtures;
  const double expert = m.moe ? 3 * real(m.moe->ffn) : 0, shared = m.moe ? 3 * real(m.moe->shared_ffn) : 0;
  const double experts = m.moe ? real(m.moe->experts) : 0, visited = m.moe ? real(m.moe->top_k) : 0;
  const double held = dense * inner + mixtures * (expert * experts + shared);
  const double parameters = real(m.hidden) * (real(m.layers) * heads + held) + 2 * vocab * real(m.hidden);
  if (parameters > most)
    found.push_back({{"model.hidden", "model.layers", "model.ffn", "model.heads", "model.vocab", "model.moe.experts"},
                     fmt::format("{:.1g} parameters are more than {:g}, which no machine holds", parameters, most)});
  const double of_token = real(m.layers) * (8 * real(m.hidden) + heads) + dense * inner +
                          mixtures * (expert * visited + shared) + vocab;
  if (const double numbers = real(micro) * real(m.seq_len) * of_token; numbers > most)
    found.push_back({{"batch.micro", "model.seq_len", "model.hidden", "model.layers", "model.ffn", "model.heads"},
                     fmt::format("{:.1g} numbers in a micro-batch are more than {:g}, which no machine holds", numbers,
                                 most)});
}

bool rotary(const RunConfig& c) { return c.model.position == Position::rotary; }

}  // namespace

void ModelConfig::derive(const RunConfig& config) {
  kv_heads.fill(heads);
  if (heads > 0 && hidden % heads == 0) head_dim.fill(hidden / heads);
  if (head_dim.known()) rope_dim.fill(head_dim);
  ffn.fill(activation == Activation::swiglu ? round_up(ceil_div(8 * hidden, 3), 128) : 4 * hidden);
  bias.fill(norm == Norm::layer);
  if (config.data.kind == DataKind::text) vocab.fill(256);
}

void ModelConfig::check(const RunConfig& config, std::vector<Finding>& found) const {
  check_attention(*this, found);
  if (!vocab.known())
    found.push_back({{"model.vocab", "data.kind", "data.tokenizer"},
                     "missing: token files do not say how large their vocabulary is; give it, or data.tokenizer"});
  else if (config.data.kind == DataKind::text && vocab < 256)
    found.push_back({{"model.vocab", "data.kind"},
                     fmt::format("{} entries cannot hold the 256 bytes of data.kind text", vocab.get())});
  check_size(*this, config.batch.micro, found);
}

void ModelConfig::advise(const RunConfig&, std::vector<Finding>& found) const {
  if (qkv_bias && bias)
    found.push_back({{"model.qkv_bias", "model.bias"}, "bias true gives one to every linear layer anyway"});
}

std::span<const Effect> ModelConfig::effects() {
  static constexpr Effect rows[] = {
      {"model.rope_base", "model.position", "with position rotary", rotary},
      {"model.rope_dim", "model.position", "with position rotary", rotary},
      {"model.qk_norm_over", "model.qk_norm", "with qk_norm true", [](const RunConfig& c) { return c.model.qk_norm; }},
      {"model.ffn", "model.moe.first_dense", "on dense layers, of which moe.first_dense and moe.every leave none",
       [](const RunConfig& c) {
         return !c.model.moe || c.model.moe->ffn.get() == c.model.ffn.get() ||
                c.model.moe->blocks().among(c.model.layers) < c.model.layers;
       }},
  };
  return rows;
}

std::span<const OtherName> ModelConfig::other_names() {
  static constexpr OtherName rows[] = {
      {"n_layer n_layers num_layers num_hidden_layers depth", "model.layers", ""},
      {"n_embd d_model dim hidden_size n_embed embed_dim channels", "model.hidden", ""},
      {"n_head n_heads num_heads num_attention_heads", "model.heads", ""},
      {"n_kv_heads num_kv_heads num_key_value_heads num_query_groups n_head_kv", "model.kv_heads", ""},
      {"kv_channels", "model.head_dim", ""},
      {"intermediate_size ffn_hidden_size ffn_dim d_ff n_inner hidden_dim",
       "model.ffn", ""},
      {"block_size seq_length sequence_length max_seq_len max_seq_length max_position_embeddings context_length "
       "n_positions n_ctx max_sequence_length", "model.seq_len", ""},
      {"vocab_size padded_vocab_size make_vocab_size_divisible_by", "model.vocab", ""},
      {"rope_theta rotary_base rope_freq_base", "model.rope_base", ""},
      {"rotary_dim rotary_ndims rope_head_dim", "model.rope_dim", ""},
      {"partial_rotary_factor rotary_pct rotary_percent", "model.rope_dim",
       "rope_dim is that share of head_dim, as a number of elements"},
      {"position_embedding_type pos_emb", "model.position", ""},
      {"rms_norm_eps layer_norm_eps layer_norm_epsilon", "model.norm_eps", ""},
      {"normalization norm_type", "model.norm", ""},
      {"hidden_act activation_function act_fn", "model.activation", ""},
      {"tie_word_embeddings tie_embeddings weight_tying enable_weight_tying share_embeddings_and_output_weights",
       "model.tied_head", ""},
      {"untie_embeddings_and_output_weights", "model.tied_head", "tied_head is its opposite"},
      {"use_bias add_bias_linear disable_bias_linear mlp_bias", "model.bias", ""},
      {"attention_bias add_qkv_bias", "model.qkv_bias", ""},
      {"qk_layernorm use_qk_norm", "model.qk_norm", ""},
      {"dropout attention_dropout hidden_dropout resid_pdrop attn_pdrop embd_pdrop resid_dropout attn_dropout "
       "dropout_rate dropout_p", "",
       "no dropout: the model learns from every activation; optimizer.weight_decay, more text and fewer epochs work "
       "against overfitting"},
      {"label_smoothing label_smoothing_factor", "", "no label smoothing: the loss is the plain cross entropy"},
      {"sliding_window window_size attention_window", "",
       "no sliding window: attention sees the whole sequence; model.seq_len bounds it"},
      {"initializer_range init_method_std init_std", "", "initial weights follow from run.seed and the shapes"},
      {"attn_implementation use_flash_attn flash_attention flash_attn attention_backend", "",
       "attention is always fused: no key chooses its kernel"},
  };
  return rows;
}

}  // namespace tessera
