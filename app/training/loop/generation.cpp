#include "app/training/loop/generation.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/base/error.hpp"
#include "kernels/random/random.hpp"

namespace tessera {
namespace {

/// Tokens that may be drawn: all in their order, or with top_k or top_p the most likely ones, most likely first.
std::vector<std::size_t> candidates(const std::vector<float>& logits, const Sampling& sampling) {
  std::vector<std::size_t> tokens(logits.size());
  std::iota(tokens.begin(), tokens.end(), std::size_t{0});
  const bool all = sampling.top_k == 0 && sampling.top_p >= 1;
  if (all) return tokens;
  std::ranges::stable_sort(tokens, [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  if (sampling.top_k > 0) tokens.resize(std::min(tokens.size(), static_cast<std::size_t>(sampling.top_k)));
  return tokens;
}

}  // namespace

std::int32_t draw(const std::vector<float>& logits, const Sampling& sampling, double u) {
  const auto most = std::max_element(logits.begin(), logits.end());
  if (!std::ranges::all_of(logits, [](float logit) { return std::isfinite(logit); }))
    throw Error(Exit::numerical, "the model's logits are not finite: nothing can be drawn from them");
  if (sampling.temperature == 0) return static_cast<std::int32_t>(most - logits.begin());
  const double top = *most;
  std::vector<std::size_t> tokens = candidates(logits, sampling);
  std::vector<double> sums;
  double sum = 0;
  for (const std::size_t token : tokens) sums.push_back(sum += std::exp((logits[token] - top) / sampling.temperature));
  if (sampling.top_p < 1) {
    const auto enough = std::ranges::lower_bound(sums, sampling.top_p * sum);
    sums.resize(std::min(sums.size(), static_cast<std::size_t>(enough - sums.begin()) + 1));
    sum = sums.back();
  }
  const auto found = std::ranges::upper_bound(sums, u * sum);
  const auto place = std::min<std::ptrdiff_t>(found - sums.begin(), std::ssize(sums) - 1);
  return static_cast<std::int32_t>(tokens[static_cast<std::size_t>(place)]);
}

void generate(const NextLogits& next, const Sampling& sampling, std::vector<std::int32_t> ids, std::int64_t count,
              const std::function<bool(std::int32_t)>& sink) {
  const RandomKey key = random_key(sampling.seed, "sample", "", 0);
  for (std::int64_t i = 0; i < count; ++i) {
    const double u = static_cast<double>(random_bits(key, static_cast<std::uint64_t>(i)) >> 11) * 0x1p-53;
    ids.push_back(draw(next(ids), sampling, u));
    if (!sink(ids.back())) return;
  }
}

}  // namespace tessera
