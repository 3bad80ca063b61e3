#include "io/convert/hf_names.hpp"

#include <algorithm>
#include <cstdlib>

#include "core/config/config.hpp"
#include "core/model/gpt.hpp"

namespace tessera {
namespace {

/// Hugging Face's names of the tensor called `ours` here. '#' stands for an expert's number. A name with .weight or
/// .bias is of that tensor alone; others are of both.
struct Renaming {
  std::string_view ours;
  std::vector<std::string_view> theirs;
};
using Naming = std::vector<Renaming>;

const Naming gpt2_names = {{"embed.tokens", {"transformer.wte"}},
                           {"embed.positions", {"transformer.wpe"}},
                           {"final_norm", {"transformer.ln_f"}},
                           {"head", {"lm_head"}},
                           {"norm1", {"ln_1"}},
                           {"norm2", {"ln_2"}},
                           {"attention.qkv", {"attn.c_attn"}},
                           {"attention.out", {"attn.c_proj"}},
                           {"mlp.up", {"mlp.c_fc"}},
                           {"mlp.down", {"mlp.c_proj"}}};

const Naming llama_names = {{"embed.tokens", {"model.embed_tokens"}},
                            {"final_norm", {"model.norm"}},
                            {"head", {"lm_head"}},
                            {"norm1", {"input_layernorm"}},
                            {"norm2", {"post_attention_layernorm"}},
                            {"attention.qkv", {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}},
                            {"attention.q_norm", {"self_attn.q_norm"}},
                            {"attention.k_norm", {"self_attn.k_norm"}},
                            {"attention.out", {"self_attn.o_proj"}},
                            {"mlp.gate_up", {"mlp.gate_proj", "mlp.up_proj"}},
                            {"mlp.down", {"mlp.down_proj"}},
                            {"moe.router.load", {}}};

/// Experts of Mixtral, and of all others.
const Naming mixtral_experts = {
    {"moe.router", {"block_sparse_moe.gate"}},
    {"moe.experts.gate_up", {"block_sparse_moe.experts.#.w1", "block_sparse_moe.experts.#.w3"}},
    {"moe.experts.down", {"block_sparse_moe.experts.#.w2"}}};
const Naming other_experts = {{"moe.router.bias", {"mlp.gate.e_score_correction_bias"}},
                              {"moe.router", {"mlp.gate"}},
                              {"moe.experts.gate_up", {"mlp.experts.#.gate_proj", "mlp.experts.#.up_proj"}},
                              {"moe.experts.down", {"mlp.experts.#.down_proj"}}};

/// Shared experts with a gate, of Qwen 2, and without.
const Naming gated_shared = {
    {"moe.shared.gate_up", {"mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"}},
    {"moe.shared.down", {"mlp.shared_expert.down_proj"}},
    {"moe.shared.gate", {"mlp.shared_expert_gate"}}};
const Naming plain_shared = {
    {"moe.shared.gate_up", {"mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"}},
    {"moe.shared.down", {"mlp.shared_experts.down_proj"}}};

std::vector<const Naming*> namings_of(Family family) {
  switch (family) {
    case Family::gpt2:
      return {&gpt2_names};
    case Family::mixtral:
      return {&llama_names, &mixtral_experts};
    case Family::qwen2_moe:
      return {&llama_names, &other_experts, &gated_shared};
    case Family::qwen3_moe:
    case Family::olmoe:
    case Family::glm4_moe:
    case Family::dots1:
      return {&llama_names, &other_experts, &plain_shared};
    case Family::llama:
    case Family::mistral:
    case Family::qwen2:
    case Family::qwen3:
      break;
  }
  return {&llama_names};
}

bool has_sigmoids(Family family) { return family == Family::glm4_moe || family == Family::dots1; }

constexpr std::string_view layers = "layers.", bias = ".bias", weight = ".weight";

/// The parts of a canonical name: "layers.3." + "attention.qkv" + ".weight".
struct NameParts {
  std::string layer;      ///< "3", or empty
  std::string_view rest;  ///< all behind the layer
  std::string_view stem, kind = weight;
};
NameParts parts_of(std::string_view name) {
  NameParts parts;
  if (name.starts_with(layers)) {
    const std::size_t dot = name.find('.', layers.size());
    parts.layer = name.substr(layers.size(), dot - layers.size());
    name.remove_prefix(dot + 1);
  }
  parts.rest = name;
  for (std::string_view kind : {weight, bias})
    if (name.ends_with(kind)) {
      parts.kind = kind;
      name.remove_suffix(kind.size());
    }
  parts.stem = name;
  return parts;
}

/// Hugging Face's names of a tensor, and what each ends with.
struct ForeignNames {
  const std::vector<std::string_view>& theirs;
  std::string_view kind;
};
ForeignNames names_of(Family family, const NameParts& parts) {
  for (const std::string_view ours : {parts.rest, parts.stem})
    for (const Naming* naming : namings_of(family))
      if (const auto found = std::ranges::find(*naming, ours, &Renaming::ours); found != naming->end())
        return {found->theirs, ours == parts.stem ? parts.kind : ""};
  throw Error(Exit::internal, "pieces_in: the family has every weight of a model that it can express");
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
  const NameParts parts = parts_of(tensor.name);
  const ForeignNames of = names_of(family, parts);
  if (of.theirs.empty()) return {};
  std::string prefix;
  if (!parts.layer.empty()) prefix = (family == Family::gpt2 ? "transformer.h." : "model.layers.") + parts.layer + ".";

  const Shape& shape = tensor.shape;
  const std::int64_t members = shape.rank() == 3 ? shape[0] : 1, width = shape.rank() == 1 ? 1 : shape[-1];
  const bool turned = family == Family::gpt2 && tensor.role == Role::matrix;
  const std::vector<std::int64_t> rows = rows_of(model, of.theirs.size(), shape.elements() / members / width);
  std::vector<ForeignPiece> pieces;
  std::int64_t first = 0;
  for (std::int64_t e = 0; e < members; ++e)
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const Shape held = shape.rank() == 1 ? Shape{rows[i]} : turned ? Shape{width, rows[i]} : Shape{rows[i], width};
      pieces.push_back({prefix + numbered(of.theirs[i], e) + std::string(of.kind), held, first,
                        turned ? Orientation::transposed : Orientation::as_is});
      first = pieces.back().end();
    }
  return pieces;
}

std::vector<ZeroTensor> zeros_in(Family family, const ModelConfig& model) {
  std::vector<ZeroTensor> zeros;
  if (!has_sigmoids(family)) return zeros;
  for (std::int64_t block = 0; block < model.layers; ++block) {
    if (!model.moe->blocks().contain(block)) continue;
    const std::string mlp = "model.layers." + std::to_string(block) + ".mlp.";
    if (!model.moe->bias) zeros.push_back({mlp + "gate.e_score_correction_bias", {model.moe->experts}});
    if (model.moe->shared_ffn > 0) continue;
    zeros.push_back({mlp + "shared_experts.gate_proj.weight", {0, model.hidden}});
    zeros.push_back({mlp + "shared_experts.up_proj.weight", {0, model.hidden}});
    zeros.push_back({mlp + "shared_experts.down_proj.weight", {model.hidden, 0}});
  }
  return zeros;
}

bool is_redundant(Family family, const ModelConfig& model, std::string_view name) {
  if (name == "lm_head.weight") return model.tied_head;
  if (family == Family::gpt2) return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
  if (has_sigmoids(family)) {
    constexpr std::string_view beginning = "model.layers.";
    if (model.moe->shared_ffn == 0 && name.find(".mlp.shared_experts.") != name.npos) return true;
    if (name.starts_with(beginning) && std::atoll(name.data() + beginning.size()) >= model.layers) return true;
  }
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
