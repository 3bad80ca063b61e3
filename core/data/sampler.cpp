#include "core/data/sampler.hpp"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "kernels/base/error.hpp"
#include "kernels/base/index.hpp"
#include "kernels/random/random.hpp"

namespace tessera {

std::vector<std::int64_t> shuffled_epoch(std::int64_t windows, std::uint64_t seed, std::int64_t epoch,
                                         std::size_t corpus) {
  const std::string name = corpus > 0 ? std::to_string(corpus) : "";
  const RandomKey key = random_key(seed, "shuffle", name, static_cast<std::uint64_t>(epoch));
  std::vector<std::int64_t> order(static_cast<std::size_t>(windows));
  std::iota(order.begin(), order.end(), 0);
  // The bias of the modulo is below windows / 2^64, which no run can observe.
  for (std::size_t i = order.size(); i-- > 1;) std::swap(order[i], order[random_bits(key, i) % (i + 1)]);
  return order;
}

Sampler::Sampler(std::int64_t windows, Order order, std::uint64_t seed, std::size_t corpus)
    : windows_(windows), order_(order), seed_(seed), corpus_(corpus) {
  require(windows > 0, "Sampler", "there must be a window to train on");
}

std::int64_t Sampler::window(std::int64_t sample) {
  require(sample >= 0, "Sampler::window", "samples are numbered from 0");
  if (order_ == Order::sequential) return sample % windows_;
  if (const std::int64_t epoch = sample / windows_; epoch != epoch_) {
    visits_ = shuffled_epoch(windows_, seed_, epoch, corpus_);
    epoch_ = epoch;
  }
  return visits_[static_cast<std::size_t>(sample % windows_)];
}

BatchPlan::BatchPlan(std::int64_t global, std::int64_t micro, std::int64_t ranks)
    : global_(global), micro_(micro), ranks_(ranks) {
  require(micro > 0 && ranks > 0 && global % micro == 0 && global / micro >= ranks, "BatchPlan",
          "deals whole micro-batches, at least one a rank");
}

std::int64_t BatchPlan::rounds() const { return ceil_div(micro_batches(), ranks_); }

SampleRange BatchPlan::micro_batch(std::int64_t round, std::int64_t rank) const {
  require(round >= 0 && round < rounds() && rank >= 0 && rank < ranks_, "BatchPlan::micro_batch",
          "no such round or rank");
  const std::int64_t begin = std::min(global_, (round * ranks_ + rank) * micro_);  // mutation: dealt_by_blocks
  return {begin, std::min(micro_, global_ - begin)};
}

EvaluationPlan::EvaluationPlan(const Windows& windows, std::int64_t most, std::int64_t micro, std::int64_t ranks)
    : first_(windows.train),
      count_(std::min(most, windows.evaluation)),
      tokens_(windows.evaluation_targets(count_)),
      micro_(micro),
      ranks_(ranks) {
  require(most >= 0 && micro > 0 && ranks > 0, "EvaluationPlan", "takes micro-batches of at least one window");
}

std::int64_t EvaluationPlan::passes() const { return ceil_div(count_, micro_ * ranks_); }

SampleRange EvaluationPlan::piece(std::int64_t pass, std::int64_t rank) const {
  require(pass >= 0 && pass < passes() && rank >= 0 && rank < ranks_, "EvaluationPlan::piece", "no such pass or rank");
  const std::int64_t begin = std::min(count_, (pass * ranks_ + rank) * micro_);
  return {first_ + begin, std::min(micro_, count_ - begin)};
}

}  // namespace tessera
