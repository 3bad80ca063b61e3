#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/training/batches.hpp"
#include "app/training/evaluation.hpp"
#include "app/training/late_report.hpp"
#include "app/training/profile.hpp"
#include "app/training/replicas.hpp"
#include "app/training/statistics.hpp"
#include "app/training/trace.hpp"
#include "core/comm/control.hpp"
#include "core/plan/plan.hpp"
#include "core/step/engine.hpp"

namespace tessera {

enum class Proceed { go_on, stop };
/// Called before the first step and after each step, with the number of steps done: saves, and decides whether to go
/// on. Collective over the world.
using Boundary = std::function<Proceed(std::int64_t step)>;

/// One training run, from initial weights to the last step: the loop, its evaluations and checks. One a rank.
/// Collective over the world, except where a function says Local.
class Training {
 public:
  /// With debug.trace a recording mesh must fill `records`; else they are unused.
  Training(Device& device, const RunPlan& plan, Batches batches, Mesh& mesh, Control& control,
           std::vector<Record>& records);

  /// Restores a checkpoint, in place of initial weights: `fill` writes its state, and run() continues from there.
  /// Passes exceptions of `fill` on.
  void restore(const std::function<void(StateDict&)>& fill);
  /// Begins a fresh run from given weights: `fill` overwrites drawn ones.
  void initialise(const std::function<void(StateDict&)>& fill);
  /// The state to save, between two steps. Passes on the last row first (catch_up).
  StateDict state();
  /// Passes on the row of the last step, if that is outstanding. Throws like run().
  void catch_up() { report_.finish(); }

  /// Makes all steps that are not done yet, or until `boundary` returns stop; returns which. An evaluation is abandoned
  /// once the run is `pressed`, and its step's row has no eval_loss: stop too, if it was the last step's. Throws on all
  /// ranks Error{numerical} after optimizer.max_skips steps in a row whose gradients were not finite, and the sink's
  /// problems.
  Proceed run(const RowSink& sink, const Boundary& boundary = {}, const Pressed& pressed = {});

  /// Where run() sends statistics of quantizers, if any are made. Local.
  void send_statistics_to(const StatisticsSink& sink) {
    if (statistics_) statistics_->send_to(sink);
  }

  /// Mean cross-entropy over the tokens of the evaluation windows with the present weights, the same bits at any number
  /// of ranks. Changes no state.
  double evaluate() { return *evaluate({}); }
  /// The same; nothing if it was abandoned.
  std::optional<double> evaluate(const Pressed& pressed);
  bool evaluates() const { return batches_.evaluation().windows() > 0; }  ///< whether it has windows; Local

  /// Logits [V] of the token that follows the last seq_len of `ids`, with the present weights. Passes on the last row
  /// first (catch_up). Changes no state.
  std::vector<float> next_logits(const std::vector<std::int32_t>& ids);

  Engine& engine() { return engine_; }
  std::int64_t step() const { return step_; }  ///< steps done; Local
  /// Number of allocations of device memory after run()'s second step. Local.
  std::int64_t late_allocations() const {
    return device_.allocations() - early_allocations_.value_or(device_.allocations());
  }

 private:
  Proceed at_boundary(std::int64_t step);
  void compare_replicas();

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
  std::optional<Statistics> statistics_;  ///< with precision.statistics_every
  Boundary boundary_;
  std::int64_t step_ = 0;
  std::int64_t next_sample_ = 0;  ///< first sample of the next step
  std::int64_t settled_ = 0;                       ///< number of run()'s second step
  std::optional<std::int64_t> early_allocations_;  ///< allocations until the end of that step
  bool ready_ = false;                             ///< whether masters have been initialised or restored
};

}  // namespace tessera
