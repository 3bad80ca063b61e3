#include "io/convert/hf_names.hpp"

#include <algorithm>

#include "core/model/gpt.hpp"

namespace tessera {
namespace {

/// Hugging Face's names of the tensor called `ours` here. '#' stands for an expert's number.
struct Renaming {
  std::string_view ours;
  std::vector<std::string_view> theirs;
};

const std::vector<Renaming> outside[] = {
    {{"embed.tokens", {"transformer.wte"}},
     {"embed.positions", {"transformer.wpe"}},
     {"final_norm", {"transformer.ln_f"}},
     {"head", {"lm_head"}}},
    {{"embed.tokens", {"model.embed_tokens"}}, {"final_norm", {"model.norm"}}, {"head", {"lm_head"}}}};

const std::vector<Renaming> in_layer[] = {
    {{"norm1", {"ln_1"}},
     {"norm2", {"ln_2"}},
     {"attention.qkv", {"attn.c_attn"}},
     {"attention.out", {"attn.c_proj"}},
     {"mlp.up", {"mlp.c_fc"}},
     {"mlp.down", {"mlp.c_proj"}}},
    {{"norm1", {"input_layernorm"}},
     {"norm2", {"post_attention_layernorm"}},
     {"attention.qkv", {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}},
     {"attention.q_norm", {"self_attn.q_norm"}},
     {"attention.k_norm", {"self_attn.k_norm"}},
     {"attention.out", {"self_attn.o_proj"}},
     {"mlp.gate_up", {"mlp.gate_proj", "mlp.up_proj"}},
     {"mlp.down", {"mlp.down_proj"}},
     {"moe.router", {"block_sparse_moe.gate"}},
     {"moe.experts.gate_up", {"block_sparse_moe.experts.#.w1", "block_sparse_moe.experts.#.w3"}},
     {"moe.experts.down", {"block_sparse_moe.experts.#.w2"}}}};

constexpr std::string_view layers = "layers.", bias = ".bias", weight = ".weight";

/// Parts of a canonical name: "layers.3." + "attention.qkv" + ".weight".
struct Parts {
  std::string layer;  ///< "3", or empty
  std::string_view stem, kind = weight;
};
Parts parts_of(std::string_view name) {
  Parts parts;
  if (name.starts_with(layers)) {
    const std::size_t dot = name.find('.', layers.size());
    parts.layer = name.substr(layers.size(), dot - layers.size());
    name.remove_prefix(dot + 1);
  }
  for (std::string_view kind : {weight, bias})
    if (name.ends_with(kind)) {
      parts.kind = kind;
      name.remove_suffix(kind.size());
    }
  parts.stem = name;
  return parts;
}

std::string numbered(std::string_view pattern, std::int64_t expert) {
  std::string name(pattern);
  if (const std::size_t at = name.find('#'); at != std::string::npos) name.replace(at, 1, std::to_string(expert));
  return name;
}

/// Rows of each of the `count` pieces into which a member is divided.
std::vector<std::int64_t> rows_of(const ModelConfig& model, std::size_t count, std::int64_t rows) {
  if (count != 3) return std::vector(count, rows / static_cast<std::int64_t>(count));
  return {model.heads * model.head_dim, model.kv_heads * model.head_dim, model.kv_heads * model.head_dim};
}

}  // namespace

std::vector<ForeignPiece> pieces_in(Family family, const ModelConfig& model, const StateTensor& tensor) {
  const Parts parts = parts_of(tensor.name);
  const int table = family == Family::gpt2 ? 0 : 1;
  const std::vector<Renaming>& names = parts.layer.empty() ? outside[table] : in_layer[table];
  const auto found = std::ranges::find(names, parts.stem, &Renaming::ours);
  require(found != names.end(), "pieces_in", "the family has every weight of a model that it can express");
  std::string prefix;
  if (!parts.layer.empty()) prefix = (family == Family::gpt2 ? "transformer.h." : "model.layers.") + parts.layer + ".";

  const Shape& shape = tensor.shape;
  const std::int64_t members = shape.rank() == 3 ? shape[0] : 1, width = shape.rank() == 1 ? 1 : shape[-1];
  const bool turned = family == Family::gpt2 && tensor.role == Role::matrix;
  const std::vector<std::int64_t> rows = rows_of(model, found->theirs.size(), shape.elements() / members / width);
  std::vector<ForeignPiece> pieces;
  std::int64_t first = 0;
  for (std::int64_t e = 0; e < members; ++e)
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const Shape held = shape.rank() == 1 ? Shape{rows[i]} : turned ? Shape{width, rows[i]} : Shape{rows[i], width};
      pieces.push_back({prefix + numbered(found->theirs[i], e) + std::string(parts.kind), held, first,
                        turned ? Orientation::transposed : Orientation::as_is});
      first = pieces.back().end();
    }
  return pieces;
}

bool is_redundant(Family family, const ModelConfig& model, std::string_view name) {
  if (name == "lm_head.weight") return model.tied_head;
  if (family == Family::gpt2) return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
  return name.ends_with(".rotary_emb.inv_freq");
}

std::vector<StateTensor> canonical_weights(const ModelConfig& model) {
  RunConfig config;
  config.model = model;
  ParamRegistry registry;
  const Gpt gpt(registry, GptShape::from(config));
  StateDict state;
  state.add("model", registry);
  return std::move(state.tensors);
}

}  // namespace tessera
