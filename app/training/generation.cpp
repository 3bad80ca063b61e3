#include "app/training/generation.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/random/random.hpp"

namespace tessera {
namespace {

constexpr double temperature = 0.8;

/// The token at quantile `u` of softmax(logits / temperature).
std::int32_t draw(const std::vector<float>& logits, double u) {
  const double top = *std::max_element(logits.begin(), logits.end());
  std::vector<double> sums;
  double sum = 0;
  for (float logit : logits) sums.push_back(sum += std::exp((logit - top) / temperature));
  const auto found = std::upper_bound(sums.begin(), sums.end(), u * sum);
  return static_cast<std::int32_t>(std::min<std::ptrdiff_t>(found - sums.begin(), std::ssize(sums) - 1));
}

}  // namespace

void generate(Engine& engine, const StepPlan& plan, std::vector<std::int32_t> prompt, std::int64_t count,
              const std::function<void(std::int32_t)>& sink) {
  const RandomKey key = random_key(plan.seed, "sample", "", 0);
  const auto length = static_cast<std::size_t>(plan.sizes.length);
  for (std::int64_t i = 0; i < count; ++i) {
    if (prompt.size() > length) prompt.erase(prompt.begin(), prompt.end() - static_cast<std::ptrdiff_t>(length));
    const double u = static_cast<double>(random_bits(key, static_cast<std::uint64_t>(i)) >> 11) * 0x1p-53;
    prompt.push_back(draw(engine.next_logits(prompt), u));
    sink(prompt.back());
  }
}

}  // namespace tessera
