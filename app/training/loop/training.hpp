#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/training/loop/batches.hpp"
#include "app/training/loop/choices.hpp"
#include "app/training/loop/evaluation.hpp"
#include "app/training/loop/inspection.hpp"
#include "app/training/loop/replicas.hpp"
#include "app/training/loop/step_timeout.hpp"
#include "app/training/tell/late_report.hpp"
#include "app/training/tell/profile.hpp"
#include "app/training/tell/trace.hpp"
#include "core/comm/control.hpp"
#include "core/plan/plan.hpp"
#include "core/step/engine.hpp"

namespace tessera {

/// What is decided at the boundary between two steps. stop: the run is to go on in a later start. change: it goes on
/// with the next recipe of precision.schedule. end: it is done, at its last step or before.
enum class Proceed { go_on, stop, change, end };

/// One training run, from initial weights to the last step: its steps, evaluations and checks. The caller's loop says
/// what comes between them:
///
///     training.begin(sink);
///     while (at_boundary(training.step()) == go_on && !training.done()) {
///       training.make_step();
///       training.evaluate_if_due();
///       training.end_step();
///     }
///     training.finish();
///
/// One a rank. Collective over the world, except where a function says Local.
class Training {
 public:
  /// With debug.trace a recording mesh must fill `records`; else they are unused.
  Training(Device& device, const RunPlan& plan, Batches batches, Mesh& mesh, Control& control,
           std::vector<Record>& records);

  /// Restores a checkpoint, in place of initial weights: `fill` writes its state, and steps continue from there. Passes
  /// exceptions of `fill` on.
  void restore(const std::function<void(StateDict&)>& fill);
  /// Begins a fresh run from given weights: `fill` overwrites drawn ones.
  void initialise(const std::function<void(StateDict&)>& fill);
  /// The state to save, between two steps. Passes on the last row first (catch_up).
  StateDict state();
  /// Passes on the row of the last step, if that is outstanding. Throws like make_step().
  void catch_up() { report_.finish(); }

  /// From now on writes the choices of experts of each step, or takes them from a record. To be called before begin(),
  /// on all ranks. Local.
  void record_choices(std::unique_ptr<RecordedChoices> record) { report_.record_choices(std::move(record)); }
  void replay_choices(std::unique_ptr<ReplayedChoices> replay) { replay_ = std::move(replay); }

  /// Begins the loop: draws the weights, unless they were given or restored. Rows go to `sink` from now on.
  void begin(const RowSink& sink);
  /// Where statistics of quantizers go, if any are made. Local.
  void send_statistics_to(const StatisticsSink& sink) {
    inspection_.send_statistics_to(sink);
  }
  bool done() const { return step_ >= plan_.config.run.steps; }  ///< whether the last step is made; Local
  /// Makes the next step. Throws on all ranks Error{numerical} after optimizer.max_skips steps in a row whose gradients
  /// were not finite, and the sink's problems.
  void make_step();
  /// Evaluates, if an evaluation follows the step just made, and adds the loss to its row. False if it was abandoned
  /// because the run is `pressed`.
  bool evaluate_if_due(const Pressed& pressed = {});
  /// Ends the step just made. Throws like make_step().
  void end_step();
  /// Ends the loop: passes on the last row and writes the rest of profile and trace. Throws like make_step().
  void finish();

  /// Mean cross-entropy over the targets of each evaluation set, in their order, with the weights of eval.weights. The
  /// same bits at any number of ranks. Nothing if it was abandoned because the run is `pressed`. Changes no state.
  std::optional<std::vector<double>> evaluate(const Pressed& pressed = {});
  bool evaluates() const { return batches_.evaluates(); }  ///< whether any set has windows; Local

  /// Logits [V] of the token that follows the last seq_len of `ids`, with the present weights. Passes on the last row
  /// first (catch_up). Changes no state.
  std::vector<float> next_logits(const std::vector<std::int32_t>& ids);

  /// The losses of the evaluation that followed the last step made, by set, once: a boundary that is passed again does
  /// not count them again. Nothing if none did. Local.
  std::optional<std::vector<double>> take_evaluated() { return std::exchange(evaluated_, std::nullopt); }
  /// StepReport::chosen of the last evaluation's first pass. On rank 0 its first micro-batch is the same
  /// whatever the ranks. Local.
  const std::vector<std::int32_t>& probed() const { return probed_; }

  Engine& engine() { return engine_; }
  std::int64_t step() const { return step_; }  ///< steps done; Local
  std::int64_t next_sample() const { return next_sample_; }  ///< the first of the next step; Local
  /// Number of allocations of device memory after the second step. Local.
  std::int64_t late_allocations() const {
    return device_.allocations() - early_allocations_.value_or(device_.allocations());
  }

 private:
  /// To be called before work between steps, such as an evaluation. Waits have the whole time-out then, and no step is
  /// timed.
  void pause() {
    control_.wait_at_most(step_timeout_.outside());
    report_.pause();
  }

  Device& device_;
  const RunPlan& plan_;
  Batches batches_;
  std::unique_ptr<ReplayedChoices> replay_;  ///< null without routing.replay
  Mesh& mesh_;
  Control& control_;
  Engine engine_;
  std::unique_ptr<Trace> trace_;  ///< null without debug.trace
  LateReport report_;
  Profile profile_;
  std::optional<ReplicaCheck> replicas_;
  Inspection inspection_;
  StepTimeout step_timeout_;
  std::optional<std::vector<double>> evaluated_;
  std::vector<std::int32_t> probed_;
  std::int64_t step_ = 0;
  std::int64_t next_sample_ = 0;  ///< first sample of the next step
  std::int64_t settled_ = 0;                       ///< number of the second step since begin()
  std::optional<std::int64_t> early_allocations_;  ///< allocations until the end of that step
  bool ready_ = false;                             ///< whether masters have been initialised or restored
};

}  // namespace tessera
