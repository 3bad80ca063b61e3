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

  /// This rank's share of step `step` (from 0), whose samples begin with number `first`: global / ranks sequences.
  const HostSequences& training(std::int64_t step, std::int64_t first);

  const EvaluationPlan& evaluation() const { return evaluation_; }
  std::int64_t evaluation_tokens() const { return evaluation_.windows() * windows_.length; }
  /// This rank's micro-batch of a pass of the evaluation, made up to `micro` sequences with padding: token 0.
  const HostSequences& evaluation(std::int64_t pass);

 private:
  void reserve(std::int64_t sequences);
  void read(std::int64_t sequence, std::int64_t window);

  const TokenStream& tokens_;
  Windows windows_;
  Sampler sampler_;
  BatchPlan plan_;
  std::int64_t rank_;
  std::int64_t share_;  ///< sequences of one step
  std::int64_t micro_;
  EvaluationPlan evaluation_;
  HostSequences batch_;
};

}  // namespace tessera
