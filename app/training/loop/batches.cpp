#include "app/training/loop/batches.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/step/fingerprint.hpp"

namespace tessera {

Batches::Batches(const RunConfig& config, std::vector<CutTokens> training, const std::vector<CutTokens>& sets,
                 const RankIn& world)
    : training_(std::move(training)),
      length_((training_.empty() ? sets : training_).front().windows.length),
      mixture_(training_.size() <= 1 ? std::vector{1.0} : config.data.mixture),
      plan_(config.batch.global, config.batch.micro, world.size),
      ranks_(Ranks::in_world(world.size, world.rank, static_cast<int>(config.parallel.expert))),
      micro_(config.batch.micro),
      documents_(config.data.documents == Documents::apart) {
  for (const CutTokens& set : sets)
    sets_.push_back({set,
                     {set.windows, config.eval.batches * config.batch.global, micro_, world.size},
                     targets_by_window(set)});
  for (const CutTokens& corpus : training_) targets_.push_back(targets_by_window(corpus));
  const Order order = config.data.shuffle ? Order::shuffled : Order::sequential;
  for (const CutTokens& corpus : training_)
    samplers_.emplace_back(corpus.windows.train, order, config.data.seed, samplers_.size());
  reserve(plan_.rounds() * micro_);
}

void Batches::reserve(std::int64_t sequences) {
  batch_.sequences = sequences;
  batch_.ids.resize(static_cast<std::size_t>(sequences * length_));
  batch_.targets.resize(batch_.ids.size());
  if (documents_) batch_.positions.resize(batch_.ids.size());
}

/// Returns the number of targets.
std::int64_t Batches::read(const CutTokens& from, std::int64_t sequence, std::int64_t window) {
  const auto n = static_cast<std::size_t>(from.windows.length), begin = static_cast<std::size_t>(sequence) * n;
  const auto part = [&](std::vector<std::int32_t>& all) {
    return all.empty() ? std::span<std::int32_t>() : std::span(all).subspan(begin, n);
  };
  return read_window(from, window, part(batch_.ids), part(batch_.targets), part(batch_.positions));
}

/// Targets of the step whose samples begin with number `first`, on all ranks together.
std::optional<std::int64_t> Batches::targets_of_step(std::int64_t first) {
  if (std::ranges::all_of(training_, [](const CutTokens& one) { return !one.answers; })) return std::nullopt;
  std::int64_t targets = 0;
  for (std::int64_t i = 0; i < plan_.micro_batches() * micro_; ++i) {
    const auto [corpus, within] = mixture_.place(first + i);
    const std::int64_t window = samplers_[corpus].window(within);
    targets += training_[corpus].answers ? targets_[corpus][static_cast<std::size_t>(window)]
                                         : training_[corpus].windows.targets(window);
  }
  return targets;
}

bool Batches::evaluates() const {
  return std::ranges::any_of(sets_, [](const EvaluationSet& set) { return set.plan.windows() > 0; });
}

std::int64_t Batches::evaluated_targets(std::size_t set) const {
  const EvaluationSet& of = sets_[set];
  if (!of.cut.answers) return of.plan.tokens();
  const auto first = of.targets.begin() + of.cut.windows.train;
  return std::accumulate(first, first + of.plan.windows(), std::int64_t{0});
}

/// Reads a micro-batch, whose first sample is numbered `sample`, to a place in the batch.
void Batches::read_training(std::int64_t sequence, std::int64_t sample) {
  for (std::int64_t i = 0; i < micro_; ++i) {
    const auto [corpus, within] = mixture_.place(sample + i);
    read(training_[corpus], sequence + i, samplers_[corpus].window(within));
  }
}

HostSequences& Batches::training(std::int64_t step, std::int64_t first, bool checked) {
  const std::int64_t own = plan_.rounds();
  reserve((own + (checked ? spot_computations - 1 : 0)) * micro_);
  batch_.checked = checked;
  batch_.padding = 0;
  batch_.counted = targets_of_step(first);
  batch_.step = static_cast<std::uint64_t>(step) + 1;
  pieces_.clear();
  for (std::int64_t round = 0; round < own; ++round) {
    const SampleRange piece = plan_.micro_batch(round, ranks_.world.rank);
    pieces_.push_back(piece.count > 0 ? piece : plan_.micro_batch(round - 1, ranks_.world.rank));
  }
  if (checked)
    for (int number = 1; number < spot_computations; ++number)
      pieces_.push_back(plan_.micro_batch(0, ranks_.further_on(number)));
  for (std::size_t i = 0; i < pieces_.size(); ++i)
    read_training(static_cast<std::int64_t>(i) * micro_, first + pieces_[i].first);
  return batch_;
}

const HostSequences& Batches::evaluation(std::size_t set, std::int64_t pass) {
  const CutTokens& cut = sets_[set].cut;
  const SampleRange piece = sets_[set].plan.piece(pass, ranks_.world.rank);
  reserve(micro_);
  batch_.checked = false;
  batch_.step = 0;
  batch_.given.clear();
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < piece.count; ++i) {
    read(cut, i, piece.first + i);
    last += cut.windows.targets(piece.first + i);
  }
  const auto real = static_cast<std::ptrdiff_t>(piece.count * length_);
  for (std::vector<std::int32_t>* all : {&batch_.ids, &batch_.targets, &batch_.positions})
    if (!all->empty()) std::fill(all->begin() + real, all->end(), 0);
  batch_.padding = std::ssize(batch_.ids) - last;
  return batch_;
}

}  // namespace tessera
