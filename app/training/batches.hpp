#pragma once
#include "core/config/config.hpp"
#include "core/data/sampler.hpp"
#include "core/layout/ranks.hpp"
#include "core/step/step_memory.hpp"

namespace tessera {

/// Turns (step, rank) into sequences. Which window a sequence shows depends on the seed and its global index alone,
/// never on the rank count. Reuses its memory; what it returns holds until the next call.
class Batches {
 public:
  /// Of one rank of `world`. `tokens` must outlive it.
  Batches(const RunConfig& config, const TokenStream& tokens, const Windows& windows, const RankIn& world);

  /// This rank's share of step `step` (from 0): global / ranks sequences.
  const HostSequences& training(std::int64_t step);

  /// Evaluation runs in rounds, as many on every rank, though a rank's part of one may be empty.
  std::int64_t evaluation_rounds() const { return evaluation_rounds_; }
  std::int64_t evaluation_windows() const { return evaluation_windows_; }  ///< of all ranks and rounds
  const HostSequences& evaluation(std::int64_t round);

 private:
  void reserve(std::int64_t sequences);
  void read(std::int64_t sequence, std::int64_t window);

  const TokenStream& tokens_;
  Windows windows_;
  Sampler sampler_;
  BatchPlan plan_;
  std::int64_t rank_;
  std::int64_t share_;  ///< sequences of one step, and at most of one round
  SampleRange evaluation_;
  std::int64_t evaluation_rounds_ = 0, evaluation_windows_ = 0;
  HostSequences batch_;
};

}  // namespace tessera
