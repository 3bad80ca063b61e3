#include "core/data/sampler.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/base/error.hpp"
#include "kernels/random/random.hpp"

namespace tessera {

std::vector<std::int64_t> shuffled_epoch(std::int64_t windows, std::uint64_t seed, std::int64_t epoch) {
  const RandomKey key = random_key(seed, "shuffle", "", static_cast<std::uint64_t>(epoch));
  std::vector<std::int64_t> order(static_cast<std::size_t>(windows));
  std::iota(order.begin(), order.end(), 0);
  // The remainder favours small numbers by less than windows / 2^64, which no run can see.
  for (std::size_t i = order.size(); i-- > 1;) std::swap(order[i], order[random_bits(key, i) % (i + 1)]);
  return order;
}

Sampler::Sampler(std::int64_t windows, Order order, std::uint64_t seed)
    : windows_(windows), order_(order), seed_(seed) {
  require(windows > 0, "Sampler", "there must be a window to train on");
}

std::int64_t Sampler::window(std::int64_t sample) {
  require(sample >= 0, "Sampler::window", "samples are numbered from 0");
  if (order_ == Order::sequential) return sample % windows_;
  if (const std::int64_t epoch = sample / windows_; epoch != epoch_) {
    visits_ = shuffled_epoch(windows_, seed_, epoch);
    epoch_ = epoch;
  }
  return visits_[static_cast<std::size_t>(sample % windows_)];
}

BatchPlan::BatchPlan(std::int64_t global, std::int64_t ranks) : global_(global), ranks_(ranks) {
  require(global > 0 && ranks > 0 && global % ranks == 0, "BatchPlan", "the global batch must divide by the ranks");
}

SampleRange BatchPlan::share(std::int64_t step, std::int64_t rank) const {
  require(step >= 0 && rank >= 0 && rank < ranks_, "BatchPlan::share", "no such step or rank");
  const std::int64_t own = global_ / ranks_;
  return {step * global_ + rank * own, own};
}

SampleRange BatchPlan::evaluation_share(const Windows& windows, std::int64_t batches, std::int64_t rank) const {
  require(rank >= 0 && rank < ranks_, "BatchPlan::evaluation_share", "no such rank");
  const std::int64_t all = std::min(batches * global_, windows.evaluation);
  const std::int64_t begin = rank * all / ranks_, end = (rank + 1) * all / ranks_;
  return {windows.train + begin, end - begin};
}

}  // namespace tessera
