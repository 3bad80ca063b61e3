#pragma once
#include <string_view>
#include <vector>

#include "core/config/config.hpp"
#include "core/state/state_dict.hpp"

namespace tessera {

/// The families of models that both this program and Hugging Face's transformers know, named by their model_type.
enum class Family { gpt2, llama, mistral, mixtral, qwen2, qwen3 };
template <>
struct Names<Family> {
  static constexpr Name<Family> table[] = {{Family::gpt2, "gpt2"},       {Family::llama, "llama"},
                                           {Family::mistral, "mistral"}, {Family::mixtral, "mixtral"},
                                           {Family::qwen2, "qwen2"},     {Family::qwen3, "qwen3"}};
};

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

/// The Hugging Face tensors that hold a canonical weight: ascending pieces that cover it. Llama separates queries, keys
/// and values, and gate and up; Mixtral separates experts, with w1 as gate, w3 as up and w2 as down.
std::vector<ForeignPiece> pieces_in(Family family, const ModelConfig& model, const StateTensor& tensor);

/// Whether a tensor of a Hugging Face folder can be ignored, because it follows from configuration or other weights:
/// masks, frequencies, a tied head.
bool is_redundant(Family family, const ModelConfig& model, std::string_view name);

/// Descriptions of a model's canonical weights in forward order, of type fp32 and without values.
std::vector<StateTensor> canonical_weights(const ModelConfig& model);

}  // namespace tessera
