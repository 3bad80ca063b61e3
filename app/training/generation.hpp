#pragma once
#include <functional>
#include <vector>

#include "io/text/encoding.hpp"

namespace tessera {

/// How the next token is sampled from its logits.
struct Sampling {
  double temperature = 0.8;  ///< 0: the most likely token, of equals the first
  std::int64_t top_k = 0;    ///< only from the k most likely tokens; 0: from all
  double top_p = 1;          ///< only from the fewest most likely tokens whose probabilities sum to this (nucleus)
  std::uint64_t seed = 0;
};

/// The token at quantile `u` in [0, 1) of softmax(logits / temperature), cut by top_k and top_p. Throws
/// Error{numerical} where logits are not finite.
std::int32_t draw(const std::vector<float>& logits, const Sampling& sampling, double u);

/// Logits of the token that follows all of `ids`. Collective over the world.
using NextLogits = std::function<std::vector<float>(const std::vector<std::int32_t>& ids)>;

/// Continues `ids` by `count` tokens, one at a time, with random numbers of (seed, "sample") and a token's number.
/// Calls `sink` with each, the same on every rank, and ends where it returns false. Collective as `next` is.
void generate(const NextLogits& next, const Sampling& sampling, std::vector<std::int32_t> ids, std::int64_t count,
              const std::function<bool(std::int32_t)>& sink);

}  // namespace tessera
