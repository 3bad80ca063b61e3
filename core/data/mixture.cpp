#include "core/data/mixture.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/base/error.hpp"

namespace tessera {

Mixture::Mixture(std::span<const double> weights) : taken_(weights.size()) {
  constexpr double all = 1 << 20;
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (const double weight : weights) {
    require(weight > 0, "Mixture", "takes weights above 0");
    shares_.push_back(std::max<std::int64_t>(1, std::llround(weight / sum * all)));
    period_ += shares_.back();
  }
  require(period_ > 0, "Mixture", "takes at least one weight");
}

// Next corpus by Sainte-Lague: that with the largest share / (2 taken + 1), the first of equals.
std::size_t Mixture::next() const {
  std::size_t best = 0;
  for (std::size_t i = 1; i < shares_.size(); ++i)
    if (shares_[i] * (2 * taken_[best] + 1) > shares_[best] * (2 * taken_[i] + 1)) best = i;
  return best;
}

Mixture::Draw Mixture::place(std::int64_t sample) {
  require(sample >= 0, "Mixture::place", "samples are numbered from 0");
  const std::int64_t periods = sample / period_, within = sample % period_;
  // After a fraction t of a period a corpus has taken round(share t) samples. At t = early / period these sum to at
  // most `within`, since rounding adds at most 1/2 each; the rest is dealt one by one.
  const std::int64_t early = std::max<std::int64_t>(0, within - static_cast<std::int64_t>(shares_.size()));
  std::ranges::transform(shares_, taken_.begin(),
                         [&](std::int64_t share) { return (2 * share * early + period_) / (2 * period_); });
  for (std::int64_t dealt = std::reduce(taken_.begin(), taken_.end()); dealt < within; ++dealt) ++taken_[next()];
  const std::size_t corpus = next();
  return {corpus, periods * shares_[corpus] + taken_[corpus]};
}

}  // namespace tessera
