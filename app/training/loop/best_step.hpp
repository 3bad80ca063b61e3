#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/comm/control.hpp"
#include "core/config/config.hpp"
#include "io/metrics/metrics_log.hpp"

namespace tessera {

/// The step with the lowest evaluation loss of a run so far, of the set that it follows, over all of its starts. Equal
/// on all ranks. Local.
class BestStep {
 public:
  /// Takes the loss of the evaluation after `step` (from 1), as the step's row holds it. One that is not finite is no
  /// gain.
  void add(std::int64_t step, float loss);

  std::int64_t step() const { return step_; }    ///< -1: nothing was evaluated to a finite loss
  std::int64_t since() const { return since_; }  ///< evaluations after it
  /// The evaluated steps, by loss and then by step: the best one first, then those that stand for it where it has no
  /// checkpoint.
  std::vector<std::int64_t> by_loss() const;
  /// Whether run.stop_after ends the run.
  bool enough(const RunSection& run) const { return run.stop_after > 0 && since_ >= run.stop_after; }

 private:
  std::int64_t step_ = -1, since_ = 0;
  float loss_ = 0;
  std::map<std::int64_t, float> losses_;  ///< of steps that were evaluated to a finite loss
};

/// The loss of the evaluation set of a name, in a row that may have been written while the run had other sets.
std::optional<float> loss_of_set(const MetricsRow& row, const std::string& name);

/// That of the rows up to step `reached` in the run directory, which rank 0 reads; none are there before the first
/// start. Throws on all ranks Error{environment} if they cannot be read. Collective over the world.
BestStep best_step_of(const RunConfig& config, std::int64_t reached, Control& control);

}  // namespace tessera
