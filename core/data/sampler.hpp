#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/data/windows.hpp"

namespace tessera {

/// The order in which an epoch visits the training windows.
enum class Order { sequential, shuffled };

/// The windows of one epoch in shuffled order: Fisher-Yates, drawn from Philox keyed (seed, "shuffle", epoch), and by
/// their number from the second of several corpora on.
std::vector<std::int64_t> shuffled_epoch(std::int64_t windows, std::uint64_t seed, std::int64_t epoch,
                                         std::size_t corpus = 0);

/// Maps the number of a corpus's sample to a training window. Samples are numbered over the whole run and the map
/// depends on its arguments alone, so a position in the data is one number and resuming is exact.
class Sampler {
 public:
  Sampler(std::int64_t windows, Order order, std::uint64_t seed, std::size_t corpus = 0);

  /// In [0, windows). Cheap within an epoch, whose order is kept; every sample is in epoch sample / windows.
  std::int64_t window(std::int64_t sample);

 private:
  std::int64_t windows_;
  Order order_;
  std::uint64_t seed_;
  std::size_t corpus_;
  std::int64_t epoch_ = -1;  // whose order is kept
  std::vector<std::int64_t> visits_;
};

/// Consecutive samples, or consecutive evaluation windows.
struct SampleRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
  bool operator==(const SampleRange&) const = default;
};

/// How a global batch of sequences is dealt: rank r takes the r-th contiguous share of the samples from number `first`
/// on. Samples are numbered over the whole run, whatever batches it went through.
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
  /// Of the first min(most, windows.evaluation) evaluation windows, each once.
  EvaluationPlan(const Windows& windows, std::int64_t most, std::int64_t micro, std::int64_t ranks);

  std::int64_t windows() const { return count_; }
  std::int64_t passes() const;
  /// As windows of the corpus; of none where the rank has no piece in that pass.
  SampleRange piece(std::int64_t pass, std::int64_t rank) const;

 private:
  std::int64_t first_, count_, micro_, ranks_;
};

}  // namespace tessera
