#pragma once
#include <functional>
#include <vector>

#include "io/text/encoding.hpp"

namespace tessera {

/// How a token is drawn from the logits of what may come next.
struct Sampling {
  double temperature = 0.8;  ///< 0: the most likely token, of equals the first
  std::int64_t top_k = 0;    ///< from so many of the most likely alone; 0: from all
  double top_p = 1;          ///< from the fewest of the most likely that together are as likely as this
  std::uint64_t seed = 0;
};

/// The token at quantile `u` in [0, 1) of what `sampling` leaves of softmax(logits / temperature). Throws
/// Error{numerical} where logits are not finite.
std::int32_t draw(const std::vector<float>& logits, const Sampling& sampling, double u);

/// Logits of the token that follows all of `ids`. Collective over the world.
using NextLogits = std::function<std::vector<float>(const std::vector<std::int32_t>& ids)>;

/// Continues `ids` by `count` tokens, one at a time, with random numbers of (seed, "sample") and a token's number.
/// Calls `sink` with each, the same on every rank, and ends where it returns false. Collective as `next` is.
void generate(const NextLogits& next, const Sampling& sampling, std::vector<std::int32_t> ids, std::int64_t count,
              const std::function<bool(std::int32_t)>& sink);

}  // namespace tessera
