#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/data/windows.hpp"

namespace tessera {

/// The order in which an epoch visits the training windows.
enum class Order { sequential, shuffled };

/// The windows of one epoch in shuffled order: Fisher-Yates with draws of Philox, keyed by (seed, "shuffle", epoch)
/// and, for corpora after the first, the corpus number.
std::vector<std::int64_t> shuffled_epoch(std::int64_t windows, std::uint64_t seed, std::int64_t epoch,
                                         std::size_t corpus = 0);

/// Maps the number of a corpus's sample to a training window. Samples are numbered over the whole run and the map
/// depends on its arguments alone, so a position in the data is one number and resuming is exact.
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

/// Deals a global batch of sequences to ranks: rank r takes the r-th contiguous share of the samples from number
/// `first` on. Sample numbers count over the whole run, even if its batch size has changed.
class BatchPlan {
 public:
  /// `global` must divide by `ranks` (Error{internal}: resolve() refuses it first).
  BatchPlan(std::int64_t global, std::int64_t ranks);

  SampleRange share(std::int64_t first, std::int64_t rank) const;

 private:
  std::int64_t global_, ranks_;
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
