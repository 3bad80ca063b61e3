#include "app/training/batches.hpp"

#include <algorithm>

#include "kernels/base/index.hpp"

namespace tessera {

Batches::Batches(const RunConfig& config, const TokenStream& tokens, const Windows& windows, const RankIn& world)
    : tokens_(tokens),
      windows_(windows),
      sampler_(windows.train, config.data.shuffle ? Order::shuffled : Order::sequential, config.run.seed),
      plan_(config.batch.global, world.size),
      rank_(world.rank),
      share_(config.batch.global / world.size),
      evaluation_(plan_.evaluation_share(windows, config.eval.batches, world.rank)) {
  for (int r = 0; r < world.size; ++r) {
    const std::int64_t count = plan_.evaluation_share(windows, config.eval.batches, r).count;
    evaluation_rounds_ = std::max(evaluation_rounds_, ceil_div(count, share_));
    evaluation_windows_ += count;
  }
  reserve(share_);
}

void Batches::reserve(std::int64_t sequences) {
  batch_.sequences = sequences;
  batch_.ids.resize(static_cast<std::size_t>(sequences * windows_.length));
  batch_.targets.resize(batch_.ids.size());
}

void Batches::read(std::int64_t sequence, std::int64_t window) {
  const auto n = static_cast<std::size_t>(windows_.length), begin = static_cast<std::size_t>(sequence) * n;
  read_window(tokens_, windows_, window, std::span(batch_.ids).subspan(begin, n),
              std::span(batch_.targets).subspan(begin, n));
}

const HostSequences& Batches::training(std::int64_t step) {
  const SampleRange samples = plan_.share(step, rank_);
  reserve(samples.count);
  batch_.first = rank_ * share_;
  for (std::int64_t i = 0; i < samples.count; ++i) read(i, sampler_.window(samples.first + i));
  return batch_;
}

const HostSequences& Batches::evaluation(std::int64_t round) {
  const std::int64_t begin = std::min(round * share_, evaluation_.count);
  reserve(std::min(share_, evaluation_.count - begin));
  batch_.first = 0;
  for (std::int64_t i = 0; i < batch_.sequences; ++i) read(i, evaluation_.first + begin + i);
  return batch_;
}

}  // namespace tessera
