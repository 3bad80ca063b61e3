#pragma once
#include <string_view>
#include <vector>

#include "core/config/config.hpp"
#include "core/state/state_dict.hpp"

namespace tessera {

/// The models that both this program and Hugging Face's transformers know; named by their model_type.
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
  Shape shape;             ///< as in its file
  std::int64_t first = 0;  ///< index of its first element in the canonical tensor
  Orientation orientation = Orientation::as_is;

  std::int64_t end() const { return first + shape.elements(); }
};

/// What a canonical weight is called there: ascending pieces that hold all of it. Queries, keys and values are apart in
/// Llama, and so are gate and up; Mixtral's experts are one by one, w1 being the gate, w3 up and w2 down.
std::vector<ForeignPiece> pieces_in(Family family, const ModelConfig& model, const StateTensor& tensor);

/// Whether a tensor of such a folder says nothing that the configuration does not: masks, frequencies, a tied head.
bool is_redundant(Family family, const ModelConfig& model, std::string_view name);

/// The weights of a model by canonical name, in forward order, fp32.
std::vector<StateTensor> canonical_weights(const ModelConfig& model);

}  // namespace tessera
