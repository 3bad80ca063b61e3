#pragma once
#include <string_view>
#include <vector>

#include "core/config/sections/model.hpp"
#include "core/state/state_dict.hpp"

namespace tessera {

/// The families of models that both this program and Hugging Face's transformers know, named by their model_type.
TESSERA_CHOICE(Family, gpt2, llama, mistral, mixtral, qwen2, qwen3, qwen2_moe, qwen3_moe, olmoe, glm4_moe, dots1);

/// Whether a file holds a matrix as [out, in], or as [in, out] like GPT-2's Conv1D.
enum class Orientation { as_is, transposed };

/// One tensor of a Hugging Face model: consecutive elements of a canonical tensor.
struct ForeignPiece {
  std::string name;
  Shape shape;             ///< shape in its file
  std::int64_t first = 0;  ///< index of its first element in the canonical tensor
  Orientation orientation = Orientation::as_is;

  std::int64_t end() const { return first + shape.elements(); }
};

/// The Hugging Face tensors that hold a canonical weight: ascending pieces that cover it; none of a router's load,
/// which training alone reads. Llama separates queries, keys and values, and gate and up; mixtures separate experts,
/// those of Mixtral with w1 as gate, w3 as up and w2 as down.
std::vector<ForeignPiece> pieces_in(Family family, const ModelConfig& model, const StateTensor& tensor);

/// A tensor of zeros, of type fp32 if it has any, that a family has and a model of this program has not.
struct ZeroTensor {
  std::string name;
  Shape shape;
};
/// A sigmoid family's bias of the choice where the model has none, and its shared experts of width 0.
std::vector<ZeroTensor> zeros_in(Family family, const ModelConfig& model);

/// Whether a tensor of a Hugging Face folder can be ignored, because it follows from configuration or other weights, or
/// the model does not read it. Such are masks, frequencies, a tied head, shared experts of width 0, layers behind the
/// last.
bool is_redundant(Family family, const ModelConfig& model, std::string_view name);

/// Descriptions of a model's canonical weights in forward order, of type fp32 and without values.
std::vector<StateTensor> canonical_weights(const ModelConfig& model);

}  // namespace tessera
