#pragma once
#include <functional>
#include <vector>

#include "io/text/encoding.hpp"

namespace tessera {

/// How the next token is sampled from logits.
struct Sampling {
  double temperature = 0.8;  ///< 0: greedy, the most likely token, of equals the first
  std::int64_t top_k = 0;    ///< sample from the k most likely tokens; 0: from all
  double top_p = 1;          ///< nucleus: sample from the fewest most likely tokens whose probabilities sum to this
  std::uint64_t seed = 0;
};

/// The token at quantile `u` in [0, 1) of softmax(logits / temperature), restricted by top_k and top_p. Throws
/// Error{numerical} if logits are not finite. Pure.
std::int32_t draw(const std::vector<float>& logits, const Sampling& sampling, double u);

/// Logits of the token that follows all of `ids`. Collective over the world.
using NextLogits = std::function<std::vector<float>(const std::vector<std::int32_t>& ids)>;

/// Continues `ids` by `count` tokens, one at a time. Random numbers are keyed by (seed, "sample") and the token's
/// number, so that all ranks draw the same. Calls `sink` with each token, and ends if it returns false. Collective over
/// the world, like `next`.
void generate(const NextLogits& next, const Sampling& sampling, std::vector<std::int32_t> ids, std::int64_t count,
              const std::function<bool(std::int32_t)>& sink);

}  // namespace tessera
