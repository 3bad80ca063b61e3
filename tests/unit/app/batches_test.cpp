#include "app/training/loop/batches.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "tests/support/small_runs.hpp"

namespace tessera {
namespace {

constexpr std::int64_t length = 24;  // seq_len of small_runs

/// A corpus whose token i is `first` + i, cut into windows, so that a window's first token identifies it.
class Counting {
 public:
  Counting(std::uint16_t first, std::int64_t windows) : tokens_(static_cast<std::size_t>(windows * length + 1)) {
    std::iota(tokens_.begin(), tokens_.end(), first);
    stream_.append(std::span<const std::uint16_t>(tokens_));
    windows_ = {length, windows, 0};
  }
  CutTokens cut() const { return {stream_, windows_}; }

 private:
  std::vector<std::uint16_t> tokens_;
  TokenStream stream_;
  Windows windows_;
};

constexpr std::uint16_t second = 30000;  // the second corpus's first token

class MixedBatches : public testing::Test {
 protected:
  Batches batches(int ranks, int rank) {
    return Batches(config_, {large_.cut(), small_.cut()}, {large_.cut()}, {rank, ranks});
  }
  /// The first tokens of the sequences of step `step`, in the order of micro-batches: round after round, rank after
  /// rank. Those of padding come last, and must be those of the round before.
  std::vector<std::int32_t> begins(std::vector<Batches>& ranks, std::int64_t step) const {
    const std::int64_t micro = config_.batch.micro;
    std::vector<std::int32_t> begins;
    std::vector<HostSequences> all;
    for (Batches& rank : ranks) all.push_back(rank.training(step, step * 12));
    const auto begin = [&](std::size_t rank, std::int64_t sequence) {
      return all[rank].ids[static_cast<std::size_t>(sequence * length)];
    };
    for (std::int64_t round = 0; round * micro < all.front().sequences; ++round)
      for (std::size_t rank = 0; rank < all.size(); ++rank)
        for (std::int64_t i = round * micro; i < (round + 1) * micro; ++i) {
          if (begins.size() < 12) begins.push_back(begin(rank, i));
          else EXPECT_EQ(begin(rank, i), begin(rank, i - micro)) << "rank " << rank;
        }
    return begins;
  }
  std::vector<Batches> world(int ranks) {
    std::vector<Batches> world;
    for (int rank = 0; rank < ranks; ++rank) world.push_back(batches(ranks, rank));
    return world;
  }

  RunConfig config_ = [] {
    RunConfig config = test::dense(Compute::fp32);
    config.data.mixture = {3, 1};
    config.batch = {.global = 12, .micro = 1};
    return config;
  }();
  Counting large_{0, 1000}, small_{second, 10};
};

TEST_F(MixedBatches, AreTheSameOnEveryRankCount) {
  std::vector<Batches> one = world(1);
  std::vector<std::vector<std::int32_t>> alone;
  for (std::int64_t step = 0; step < 9; ++step) alone.push_back(begins(one, step));
  for (const int ranks : {2, 3, 4, 5, 6, 7, 12}) {
    std::vector<Batches> many = world(ranks);
    for (std::int64_t step = 0; step < 9; ++step)
      EXPECT_EQ(begins(many, step), alone[static_cast<std::size_t>(step)]) << ranks << " ranks, step " << step;
  }
  // A run that begins in the middle gets the same batches there.
  std::vector<Batches> later = world(3);
  EXPECT_EQ(begins(later, 7), alone[7]);
  config_.run.seed += 1;
  std::vector<Batches> other = world(1);
  EXPECT_NE(begins(other, 7), alone[7]);
}

TEST_F(MixedBatches, OfASpotCheckEndWithTheFirstMicroBatchesOfRanksFurtherOn) {
  config_.batch.micro = 2;
  for (const auto& [ranks, expert] : {std::pair{1, 1}, {2, 1}, {2, 2}, {3, 1}, {4, 2}, {6, 2}}) {
    config_.parallel.expert = expert;
    std::vector<Batches> world = this->world(ranks);
    const auto of = [&](int rank, bool checked) {
      return world[static_cast<std::size_t>(rank)].training(3, 36, checked);
    };
    const auto micro_batch = [&](const HostSequences& batch, std::int64_t number) {
      const auto begin = batch.ids.begin() + number * 2 * length;
      return std::vector(begin, begin + 2 * length);
    };
    for (int rank = 0; rank < ranks; ++rank) {
      const HostSequences own = of(rank, false), checked = of(rank, true);
      EXPECT_FALSE(own.checked);
      ASSERT_TRUE(checked.checked);
      ASSERT_EQ(checked.sequences, own.sequences + 4);
      for (const int number : {1, 2})
        EXPECT_EQ(micro_batch(checked, own.sequences / 2 + number - 1),
                  micro_batch(of((rank + number * expert) % ranks, false), 0))
            << "rank " << rank << " of " << ranks << ", groups of " << expert << ", computation " << number;
    }
  }
}

TEST_F(MixedBatches, GiveEachCorpusItsShareWhateverItsSize) {
  std::vector<Batches> one = world(1);
  std::vector<std::int32_t> of_second;
  for (std::int64_t step = 0; step < 10; ++step) {
    std::int64_t count = 0;
    for (const std::int32_t begin : begins(one, step))
      if (begin >= second) {
        ++count;
        of_second.push_back(begin);
      }
    EXPECT_EQ(count, 3) << "a quarter of each batch of 12";
  }
  ASSERT_EQ(of_second.size(), 30u);
  for (auto epoch = of_second.begin(); epoch != of_second.end(); epoch += 10) {  // of 10 windows, each comes once
    std::sort(epoch, epoch + 10);
    for (std::int32_t w = 0; w < 10; ++w) EXPECT_EQ(epoch[w], second + w * length);
  }
}

/// Tokens of a batch that count, of all ranks' sequences: inputs and targets.
void take(const HostSequences& got, std::multiset<std::int32_t>& targets, std::set<std::int32_t>& seen) {
  const auto real = static_cast<std::size_t>(std::ssize(got.ids) - got.padding);
  targets.insert(got.targets.begin(), got.targets.begin() + static_cast<std::ptrdiff_t>(real));
  for (std::size_t i = 0; i < real; ++i) seen.insert({got.ids[i], got.targets[i]});
}

// Corpora of drawn sizes whose tokens are all different: what training reads in an epoch and what an evaluation reads
// have no token in common. An evaluation reads the same on any number of ranks.
TEST(DrawnEvaluation, ReadsWhatTrainingNeverReads) {
  std::mt19937 draws(5);
  for (int corpus = 0; corpus < 12; ++corpus) {
    std::vector<std::uint16_t> tokens(static_cast<std::size_t>(draws() % 3000 + 4 * length));
    std::iota(tokens.begin(), tokens.end(), std::uint16_t{1});
    TokenStream stream;
    const std::size_t border = draws() % tokens.size();
    stream.append(std::span<const std::uint16_t>(tokens).first(border));
    stream.append(std::span<const std::uint16_t>(tokens).subspan(border));
    Problems problems;
    const double fraction = 0.02 + 0.1 * static_cast<double>(draws() % 5);
    const Windows windows = Windows::apart(std::ssize(tokens), length, fraction, draws(), problems);
    problems.raise();
    RunConfig config = test::dense(Compute::fp32);
    config.data.shuffle = corpus % 2 == 0;
    std::multiset<std::int32_t> evaluated_alone;
    for (const int ranks : {1, 2, 3, 4}) {
      std::multiset<std::int32_t> trained_targets, evaluated_targets;
      std::set<std::int32_t> trained, evaluated;
      for (int rank = 0; rank < ranks; ++rank) {
        Batches batches(config, stream, windows, {rank, ranks});
        const std::int64_t steps = windows.train / config.batch.global + 1;
        for (std::int64_t step = 0; step < steps; ++step)
          take(batches.training(step, step * config.batch.global), trained_targets, trained);
        for (std::int64_t pass = 0; pass < batches.plan_of(0).passes(); ++pass)
          take(batches.evaluation(0, pass), evaluated_targets, evaluated);
      }
      if (ranks == 1) evaluated_alone = evaluated_targets;
      EXPECT_EQ(evaluated_targets, evaluated_alone) << ranks << " ranks";
      EXPECT_FALSE(evaluated.empty());
      for (const std::int32_t token : evaluated) ASSERT_FALSE(trained.contains(token)) << "token " << token;
    }
  }
}

// Every token of a whole text but the first is predicted once, whatever the ranks; the rest is padding.
TEST(WholeText, IsPredictedOnceOnAnyNumberOfRanks) {
  RunConfig config = test::dense(Compute::fp32);
  config.batch.micro = 2;
  config.eval.batches = 1000;
  for (const std::int64_t count : {2, 3, 24, 25, 26, 49, 121, 500}) {
    std::vector<std::uint16_t> tokens(static_cast<std::size_t>(count));
    std::iota(tokens.begin(), tokens.end(), std::uint16_t{1});
    TokenStream stream;
    stream.append(std::span<const std::uint16_t>(tokens));
    for (const int ranks : {1, 2, 3, 4}) {
      std::multiset<std::int32_t> targets;
      std::set<std::int32_t> seen;
      for (int rank = 0; rank < ranks; ++rank) {
        Batches batches(config, std::vector<CutTokens>(), std::vector{CutTokens{stream, Windows::whole(count, length)}},
                        {rank, ranks});
        EXPECT_EQ(batches.plan_of(0).tokens(), count - 1);
        for (std::int64_t pass = 0; pass < batches.plan_of(0).passes(); ++pass)
          take(batches.evaluation(0, pass), targets, seen);
      }
      EXPECT_EQ(targets, std::multiset<std::int32_t>(tokens.begin() + 1, tokens.end())) << ranks << " ranks";
    }
  }
}

}  // namespace
}  // namespace tessera
