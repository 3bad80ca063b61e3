#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

/// Picks the corpus of each sample of a run in proportion to the corpora's weights, in the order of Sainte-Lague's rule
/// (seats to parties). Every stretch of samples is mixed like the whole. The pick depends on the weights and the
/// sample's number alone, so one number is the position in the data, and resuming is exact. Local.
class Mixture {
 public:
  /// Weights must be above 0. Shares are rounded to multiples of 2^-20 of the whole, at least one.
  explicit Mixture(std::span<const double> weights);

  /// A sample of one of the corpora, both numbered from 0.
  struct Draw {
    std::size_t corpus = 0;
    std::int64_t sample = 0;
    bool operator==(const Draw&) const = default;
  };
  /// Corpus and index of sample number `sample` of the run: a one-to-one map. Among the first n samples, a corpus has
  /// its share of n up to an error of (1 + corpora) / 2. The time does not depend on `sample`.
  Draw place(std::int64_t sample);

 private:
  std::size_t next() const;

  std::vector<std::int64_t> shares_;  // samples of each corpus in a period
  std::int64_t period_ = 0;           // samples after which the order repeats
  std::vector<std::int64_t> taken_;   // samples of each corpus so far in the current period
};

}  // namespace tessera
