#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/training/batches.hpp"
#include "app/training/late_report.hpp"
#include "app/training/profile.hpp"
#include "app/training/replicas.hpp"
#include "app/training/trace.hpp"
#include "core/comm/control.hpp"
#include "core/plan/plan.hpp"
#include "core/step/engine.hpp"

namespace tessera {

enum class Proceed { go_on, stop };
/// What happens between steps besides training: saves, and whether to go on. Called before the first step and after
/// each with the number of steps done. Collective.
using Boundary = std::function<Proceed(std::int64_t step)>;

/// One training run, from initial weights to the last step: the loop, its evaluations and checks. One a rank; every
/// call is collective.
class Training {
 public:
  /// `records` is filled by a recording mesh when debug.trace asks for one, else unused.
  Training(Device& device, const RunPlan& plan, Batches batches, Mesh& mesh, Control& control,
           std::vector<Record>& records);

  /// In place of initial weights: `fill` writes what a checkpoint holds, and run() goes on from there. What it throws
  /// leaves through here.
  void restore(const std::function<void(StateDict&)>& fill);
  /// A fresh run from other weights than drawn ones: `fill` overwrites those that it has.
  void initialise(const std::function<void(StateDict&)>& fill);
  /// All that a checkpoint sees, between two steps. Catches up.
  StateDict state();
  /// Hands on the row of the last step, should that be outstanding. Throws as run() does.
  void catch_up() { report_.finish(); }

  /// All steps not yet done, or as many as `boundary` lets; says which. Throws on all ranks: Error{numerical} after
  /// optimizer.max_skips skipped steps in a row, or the sink's problems.
  Proceed run(const RowSink& sink, const Boundary& boundary = {});

  /// Mean cross-entropy over the tokens of the evaluation windows, as it stands: the same bits at any number of ranks.
  /// Moves nothing. Collective.
  double evaluate();

  /// Logits [V] of the token that follows the last seq_len of `ids`, from the weights as they stand. Catches up; moves
  /// nothing. Collective.
  std::vector<float> next_logits(const std::vector<std::int32_t>& ids);

  Engine& engine() { return engine_; }
  std::int64_t step() const { return step_; }  ///< steps done
  /// How often device memory was asked for after run()'s second step.
  std::int64_t late_allocations() const {
    return device_.allocations() - early_allocations_.value_or(device_.allocations());
  }

 private:
  Proceed at_boundary(std::int64_t step);
  void compare_replicas();
  void plan_faults();

  Device& device_;
  const RunPlan& plan_;
  Batches batches_;
  Mesh& mesh_;
  Control& control_;
  Engine engine_;
  std::unique_ptr<Trace> trace_;  ///< null without debug.trace
  LateReport report_;
  Profile profile_;
  std::optional<ReplicaCheck> replicas_;
  Boundary boundary_;
  std::int64_t step_ = 0;
  std::int64_t next_sample_ = 0;  ///< of the next step
  std::int64_t settled_ = 0;                       ///< the second step of run()
  std::optional<std::int64_t> early_allocations_;  ///< once that is done
  bool ready_ = false;                             ///< masters hold values
};

}  // namespace tessera
