#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

/// Picks the corpus of each sample of a run by its weights: in the order of Sainte-Lague's rule (seats to parties), so
/// that every stretch of samples is mixed like the whole. A function of the weights and the sample's number
/// alone, so that a position in the data is one number and resuming is exact.
class Mixture {
 public:
  /// Of weights above 0, whose shares are kept to 2^-20 of the whole and are at least that.
  explicit Mixture(std::span<const double> weights);

  /// A sample of one of the corpora, both numbered from 0.
  struct Place {
    std::size_t corpus = 0;
    std::int64_t sample = 0;
    bool operator==(const Place&) const = default;
  };
  /// Every sample of every corpus has one number. Of the first n samples, each corpus has its share of n but for
  /// (1 + corpora) / 2. Takes a time that does not depend on `sample`.
  Place place(std::int64_t sample);

 private:
  std::size_t next() const;

  std::vector<std::int64_t> shares_;  // of a period
  std::int64_t period_ = 0;           // samples, after which the order repeats
  std::vector<std::int64_t> taken_;   // by each corpus, of the period in hand
};

}  // namespace tessera
