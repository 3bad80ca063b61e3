#include "app/training/batches.hpp"

#include <algorithm>
#include <utility>

#include "core/step/fingerprint.hpp"

namespace tessera {

Batches::Batches(const RunConfig& config, std::vector<CutTokens> training, const CutTokens& held, const RankIn& world)
    : training_(std::move(training)),
      held_(held),
      mixture_(training_.size() <= 1 ? std::vector{1.0} : config.data.mixture),
      plan_(config.batch.global, config.batch.micro, world.size),
      ranks_(Ranks::in_world(world.size, world.rank, static_cast<int>(config.parallel.expert))),
      micro_(config.batch.micro),
      evaluation_(held.windows, config.eval.batches * config.batch.global, micro_, world.size) {
  const Order order = config.data.shuffle ? Order::shuffled : Order::sequential;
  for (const CutTokens& corpus : training_)
    samplers_.emplace_back(corpus.windows.train, order, config.data.seed, samplers_.size());
  reserve(plan_.rounds() * micro_);
}

void Batches::reserve(std::int64_t sequences) {
  batch_.sequences = sequences;
  batch_.ids.resize(static_cast<std::size_t>(sequences * held_.windows.length));
  batch_.targets.resize(batch_.ids.size());
}

void Batches::read(const CutTokens& from, std::int64_t sequence, std::int64_t window) {
  const auto n = static_cast<std::size_t>(from.windows.length), begin = static_cast<std::size_t>(sequence) * n;
  read_window(from.tokens, from.windows, window, std::span(batch_.ids).subspan(begin, n),
              std::span(batch_.targets).subspan(begin, n));
}

/// Reads a micro-batch, whose first sample is numbered `sample`, to a place in the batch.
void Batches::read_training(std::int64_t sequence, std::int64_t sample) {
  for (std::int64_t i = 0; i < micro_; ++i) {
    const auto [corpus, within] = mixture_.place(sample + i);
    read(training_[corpus], sequence + i, samplers_[corpus].window(within));
  }
}

const HostSequences& Batches::training(std::int64_t step, std::int64_t first, bool checked) {
  const std::int64_t own = plan_.rounds();
  reserve((own + (checked ? spot_computations - 1 : 0)) * micro_);
  batch_.checked = checked;
  batch_.padding = 0;
  batch_.step = static_cast<std::uint64_t>(step) + 1;
  for (std::int64_t round = 0; round < own; ++round) {
    SampleRange piece = plan_.micro_batch(round, ranks_.world.rank);
    if (piece.count == 0) piece = plan_.micro_batch(round - 1, ranks_.world.rank);
    read_training(round * micro_, first + piece.first);
  }
  if (checked)
    for (int number = 1; number < spot_computations; ++number)
      read_training((own + number - 1) * micro_, first + plan_.micro_batch(0, ranks_.further_on(number)).first);
  return batch_;
}

const HostSequences& Batches::evaluation(std::int64_t pass) {
  const SampleRange piece = evaluation_.piece(pass, ranks_.world.rank);
  reserve(micro_);
  batch_.checked = false;
  batch_.step = 0;
  std::int64_t counted = 0;
  for (std::int64_t i = 0; i < piece.count; ++i) {
    read(held_, i, piece.first + i);
    counted += held_.windows.targets(piece.first + i);
  }
  const auto real = static_cast<std::ptrdiff_t>(piece.count * held_.windows.length);
  std::fill(batch_.ids.begin() + real, batch_.ids.end(), 0);
  std::fill(batch_.targets.begin() + real, batch_.targets.end(), 0);
  batch_.padding = std::ssize(batch_.ids) - counted;
  return batch_;
}

}  // namespace tessera
