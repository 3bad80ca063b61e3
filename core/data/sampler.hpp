#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/data/windows.hpp"

namespace tessera {

/// The order in which an epoch visits the training windows.
enum class Order { sequential, shuffled };

/// The windows of one epoch in shuffled order. The shuffle is Fisher-Yates with draws of Philox, keyed by (seed,
/// "shuffle", epoch) and, for corpora after the first, the corpus number.
std::vector<std::int64_t> shuffled_epoch(std::int64_t windows, std::uint64_t seed, std::int64_t epoch,
                                         std::size_t corpus = 0);

/// Maps the number of a corpus's sample to a training window. Samples are numbered over the whole run and the map
/// depends on its arguments alone. So a position in the data is one number and resuming is exact.
class Sampler {
 public:
  Sampler(std::int64_t windows, Order order, std::uint64_t seed, std::size_t corpus = 0);

  /// The window of a sample, in [0, windows). Sample s is in epoch s / windows. The order of one epoch is cached, so
  /// calls within an epoch are cheap.
  std::int64_t window(std::int64_t sample);

 private:
  std::int64_t windows_;
  Order order_;
  std::uint64_t seed_;
  std::size_t corpus_;
  std::int64_t epoch_ = -1;  // the epoch whose order visits_ holds
  std::vector<std::int64_t> visits_;
};

/// Consecutive samples, or consecutive evaluation windows.
struct SampleRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
  bool operator==(const SampleRange&) const = default;
};

/// Deals the micro-batches of a step to ranks by turns: micro-batch `round * ranks + rank` is the rank's in a round.
/// The last round may have fewer micro-batches than ranks: the last ranks are idle in it, and compute padding. What a
/// micro-batch holds, and its number, do not depend on the rank count.
class BatchPlan {
 public:
  /// `micro` must divide `global`, which holds at least a micro-batch a rank (Error{internal}: resolve() refuses it
  /// first).
  BatchPlan(std::int64_t global, std::int64_t micro, std::int64_t ranks);

  std::int64_t micro_batches() const { return global_ / micro_; }
  std::int64_t rounds() const;
  std::int64_t idle_ranks() const { return rounds() * ranks_ - micro_batches(); }  ///< in the last round
  /// Sequences of the batch, numbered from 0, that a rank computes in a round; count 0 if it is idle.
  SampleRange micro_batch(std::int64_t round, std::int64_t rank) const;

 private:
  std::int64_t global_, micro_, ranks_;
};

/// Deals an evaluation to ranks in whole micro-batches: piece j of `micro` windows, the last one shorter, goes to rank
/// j mod ranks in pass j / ranks. Every rank makes every pass, with padding where it has no piece. The contents of a
/// micro-batch do not depend on the rank count.
class EvaluationPlan {
 public:
  /// Covers the first min(most, windows.evaluation) evaluation windows, each once; `micro` windows a micro-batch.
  EvaluationPlan(const Windows& windows, std::int64_t most, std::int64_t micro, std::int64_t ranks);

  std::int64_t windows() const { return count_; }
  std::int64_t tokens() const { return tokens_; }  ///< the targets of all of them
  std::int64_t passes() const;
  /// Windows of the corpus that the rank evaluates in a pass; count 0 if it has no piece there.
  SampleRange piece(std::int64_t pass, std::int64_t rank) const;

 private:
  std::int64_t first_, count_, tokens_, micro_, ranks_;
};

}  // namespace tessera
