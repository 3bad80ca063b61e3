#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/training/start/given_weights.hpp"
#include "app/training/start/preparation.hpp"

namespace tessera {

/// A tokenizer as far as it is known: a tokenizer.json, bytes, or neither.
struct KnownTokenizer {
  std::string name;  ///< for messages
  std::optional<std::string> json;
  bool bytes = false;
};
/// The one that weights were trained with.
KnownTokenizer tokenizer_of(const GivenWeights& given);
/// That of the deck; without one, that beside the run's token files, with which they were made.
KnownTokenizer tokenizer_of(const Prepared& run);

/// The encoding of a model's text: its tokenizer.json, or bytes; null if unknown. Throws Error{file} if that cannot be
/// read or is another model's.
std::unique_ptr<TextEncoding> encoding_of(const GivenWeights& given);

/// Why weights were trained on other tokens than the run's, or nothing; adds what else there is to tell, a line each.
std::string other_tokens(const KnownTokenizer& theirs, const KnownTokenizer& ours, std::vector<std::string>& told);

}  // namespace tessera
