#pragma once
#include <optional>
#include <vector>

#include "core/config/config.hpp"
#include "core/data/cut_tokens.hpp"
#include "core/data/mixture.hpp"
#include "core/data/sampler.hpp"
#include "core/layout/ranks.hpp"
#include "core/step/step_memory.hpp"

namespace tessera {

/// Makes the sequences of a (step, rank). The window of a sequence depends on the seed and its global index alone,
/// never on the rank count. Reuses its memory: a result is valid until the next call. Local.
class Batches {
 public:
  /// For one rank of `world`: training batches from the training windows of `training`. That is one corpus or as many
  /// as data.mixture has weights, or none for evaluation alone. Evaluations are on the evaluation windows of each of
  /// `sets`. All tokens must outlive it.
  Batches(const RunConfig& config, std::vector<CutTokens> training, const std::vector<CutTokens>& sets,
          const RankIn& world);
  /// Trains and evaluates on one corpus.
  Batches(const RunConfig& config, const TokenStream& tokens, const Windows& windows, const RankIn& world)
      : Batches(config, std::vector{CutTokens{tokens, windows}}, std::vector{CutTokens{tokens, windows}}, world) {}

  /// This rank's micro-batches of step `step` (from 0), round after round. The batch's samples begin with number
  /// `first`. Where the rank is idle in the last round, padding: the sequences of the round before again, which spread
  /// over experts as others do. `checked`: behind them the micro-batches that a spot check computes again.
  HostSequences& training(std::int64_t step, std::int64_t first, bool checked = false);
  /// The sequences of the global batch in the micro-batches that training() made last, in its order.
  const std::vector<SampleRange>& pieces() const { return pieces_; }

  std::size_t sets() const { return sets_.size(); }  ///< number of evaluation sets
  bool evaluates() const;                            ///< whether any of them has windows
  const EvaluationPlan& plan_of(std::size_t set) const { return sets_[set].plan; }
  /// Targets of the whole evaluation of a set.
  std::int64_t evaluated_targets(std::size_t set) const;
  /// This rank's micro-batch of a pass of a set's evaluation, padded with token 0 to `micro` whole sequences.
  const HostSequences& evaluation(std::size_t set, std::int64_t pass);

 private:
  void reserve(std::int64_t sequences);
  std::int64_t read(const CutTokens& from, std::int64_t sequence, std::int64_t window);
  std::optional<std::int64_t> targets_of_step(std::int64_t first);
  void read_training(std::int64_t sequence, std::int64_t sample);

  struct EvaluationSet {
    CutTokens cut;
    EvaluationPlan plan;
    std::vector<std::int32_t> targets;  ///< by window; empty where every token is a target
  };

  std::vector<CutTokens> training_;
  std::vector<EvaluationSet> sets_;
  std::int64_t length_;
  Mixture mixture_;
  std::vector<Sampler> samplers_;  ///< by corpus
  BatchPlan plan_;
  Ranks ranks_;
  std::int64_t micro_;
  HostSequences batch_;
  std::vector<SampleRange> pieces_;
  bool documents_;                                  ///< whether batches have positions
  std::vector<std::vector<std::int32_t>> targets_;  ///< by corpus and window; empty where every token is a target
};

}  // namespace tessera
