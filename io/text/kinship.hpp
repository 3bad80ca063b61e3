#pragma once
#include <string>

namespace tessera {

/// How one tokenizer.json differs from another in the ids that it gives.
struct Kinship {
  std::string conflict;  ///< why weights trained with the one mean other tokens to the other; empty: they do not
  std::string told;      ///< differences that leave every token's id its meaning: new tokens, templates; or empty
};

/// Compares the tokenizer of a run with that of the weights that it starts from. Both have the same tokens at the same
/// ids and cut text alike, or there is a conflict; the run's may have further tokens and merges. What changes no id
/// (decoder, truncation, padding, the way in which merges are written, keys at their defaults) is no difference. Any
/// kind of model is compared. Pure.
Kinship kinship_of(const std::string& weights, const std::string& run);

}  // namespace tessera
