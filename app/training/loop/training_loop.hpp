#pragma once
#include <cstdint>
#include <optional>

#include "app/training/loop/saving.hpp"
#include "app/training/loop/training.hpp"
#include "app/training/tell/run_log.hpp"
#include "core/comm/control.hpp"
#include "core/plan/plan.hpp"
#include "io/text/encoding.hpp"

namespace tessera {

/// The loop of `tessera train`: steps, and between them evaluations, samples and saves. A stop abandons an evaluation
/// or a sample that is under way. One a rank. Collective over the world.
class TrainingLoop {
 public:
  struct Uses {
    const RunPlan& plan;
    const TextEncoding& encoding;  ///< of samples
    Control& control;
    Training& training;
    Saving& saving;
    RunLog* log;           ///< null except on rank 0
    std::int64_t sampled;  ///< the step whose sample was generated with the recipe before; -1: none
  };
  explicit TrainingLoop(const Uses& uses);

  /// Makes all steps of the segment that are not done yet; stop: it ended early, in a way that the same command can go
  /// on from.
  /// `unfinished`: row_to_complete(), whose evaluation it makes first. Throws as Training and Saving do.
  Proceed run(const std::optional<MetricsRow>& unfinished);
  /// Generates a sample, which rank 0 prints; false if it was abandoned.
  bool sample();

 private:
  bool complete(const std::optional<MetricsRow>& unfinished);
  bool sample_if_due(std::int64_t step);

  const RunPlan& plan_;
  const TextEncoding& encoding_;
  Control& control_;
  Training& training_;
  Saving& saving_;
  RunLog* log_;
  const std::int64_t sampled_;
  Pressed pressed_;
};

}  // namespace tessera
