#include "app/training/batches.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

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
    return Batches(config_, {large_.cut(), small_.cut()}, large_.cut(), {rank, ranks});
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
    config.batch = {12, 1};
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

}  // namespace
}  // namespace tessera
