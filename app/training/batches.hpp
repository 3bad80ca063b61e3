#pragma once
#include <vector>

#include "core/config/config.hpp"
#include "core/data/mixture.hpp"
#include "core/data/sampler.hpp"
#include "core/layout/ranks.hpp"
#include "core/step/step_memory.hpp"

namespace tessera {

/// Tokens and how they are cut.
struct CutTokens {
  const TokenStream& tokens;
  Windows windows;
};

/// Turns (step, rank) into sequences. Which window a sequence shows depends on the seed and its global index alone,
/// never on the rank count. Reuses its memory; what it returns holds until the next call.
class Batches {
 public:
  /// Of one rank of `world`: learns from the training windows of one corpus, or of as many as data.mixture has weights,
  /// and evaluates on those for it of `held`. All tokens must outlive it.
  Batches(const RunConfig& config, std::vector<CutTokens> training, const CutTokens& held, const RankIn& world);
  /// Trains and evaluates on one corpus.
  Batches(const RunConfig& config, const TokenStream& tokens, const Windows& windows, const RankIn& world)
      : Batches(config, std::vector{CutTokens{tokens, windows}}, {tokens, windows}, world) {}

  /// This rank's share of step `step` (from 0), whose samples begin with number `first`: global / ranks sequences.
  const HostSequences& training(std::int64_t step, std::int64_t first);

  const EvaluationPlan& evaluation() const { return evaluation_; }
  std::int64_t evaluation_tokens() const { return evaluation_.windows() * held_.windows.length; }
  /// This rank's micro-batch of a pass of the evaluation, made up to `micro` sequences with padding: token 0.
  const HostSequences& evaluation(std::int64_t pass);

 private:
  void reserve(std::int64_t sequences);
  void read(const CutTokens& from, std::int64_t sequence, std::int64_t window);

  std::vector<CutTokens> training_;
  CutTokens held_;
  Mixture mixture_;
  std::vector<Sampler> samplers_;  ///< of each corpus
  BatchPlan plan_;
  std::int64_t rank_;
  std::int64_t share_;  ///< sequences of one step
  std::int64_t micro_;
  EvaluationPlan evaluation_;
  HostSequences batch_;
};

}  // namespace tessera
