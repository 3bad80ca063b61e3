#pragma once
#include <functional>
#include <optional>
#include <vector>

#include "core/comm/mesh.hpp"
#include "core/model/factor_observer.hpp"
#include "core/model/row_exchange.hpp"
#include "core/optim/average.hpp"
#include "core/optim/optimizers.hpp"
#include "core/step/built_model.hpp"
#include "core/step/fingerprint.hpp"
#include "core/step/repeated_work.hpp"
#include "core/step/step_observer.hpp"
#include "core/step/step_memory.hpp"
#include "kernels/base/external_event.hpp"

namespace tessera {

/// Runs training steps and evaluations: a StepPlan built on a device, a measuring one to plan, a real one to run. One a
/// rank.
class Engine {
 public:
  /// `mesh` must connect the ranks that were planned for (else Error{internal}). Allocates. Local.
  Engine(Device& device, const StepPlan& plan, Mesh& mesh);

  /// Sets masters, and state and counters of the rules, to those of a fresh run. The first forward all-gathers weights.
  /// Collective over the world.
  void initialise();
  /// The same with given weights: calls `fill` with the drawn masters, without other state, to overwrite any of them;
  /// passes exceptions of `fill` on. Collective over the world.
  void initialise(const std::function<void(StateDict&)>& fill);

  /// The state to save: masters and state of the rules as named tensors, and the rules' counters. The caller adds step,
  /// tokens and position in the data. Waits for the device. The next step's update waits for before_update. Local.
  StateDict state();
  /// The same tensors, with present contents, and the counters of a fresh run. Does not wait. Local.
  StateDict fresh_state() const;
  /// Restores a saved state, in place of initialise(). Calls `fill` with the state and counters of a fresh run, all of
  /// which it must write; passes exceptions of `fill` on. The first forward all-gathers weights. Collective over the
  /// world.
  void restore(const std::function<void(StateDict&)>& fill);

  /// One optimizer step: forward, backward, reduction, clip, update, publication. Only enqueues. The bits depend on its
  /// arguments and the state alone. Its report() can be read until the next step but one. With StepPlan::graph all but
  /// the copies of tokens and report is RepeatedWork (captured and replayed). It is not if there is an observer, a
  /// recording timeline, an exchange of rows whose counts the host reads, or a transport that needs the host.
  /// Collective over the world.
  Turn step(const HostSequences& batch, const StepScalars& scalars);
  /// From now on computes every step that would be skipped once more, and calls `judge` before anything is updated. The
  /// host waits for each step's norm then, and steps are not captured. On all ranks. Local.
  void confirm_skips(Judge judge) { judge_ = std::move(judge); }
  /// From now on calls `judge` in each step whose batch is `checked`, before its gradients are reduced. The host waits
  /// for the first micro-batch then, and the step is not captured. On all ranks. Local.
  void spot_check(SpotJudge judge) { spot_judge_ = std::move(judge); }

  /// Fault injection: faults of the next step on this rank, which is then neither captured nor replayed.
  void spoil_next(float value) { fault_ = value; }  ///< Pass::fault of its first micro-batch, whenever it is computed
  void redo_next() { redo_ = true; }                ///< drops its reduced gradients and makes them again; on all ranks
  /// A machine's fault, in the step's first computation alone. Infinity in the gradient of an activation, in the first
  /// gradient written, or in this rank's shard of the first bucket once that is reduced. Faults that look sound: a
  /// number in the gradient of an activation, or a bit of the mantissa in the first gradient written. In the step's own
  /// computation, in that of a spot check for another rank, or in all.
  enum class Fault { activation, gradient, shard, number, bit, bit_for_another, bit_always };
  void fail_once(Fault where) { once_ = where; }

  /// Sums, norm and flags of that step or evaluation, the same on all ranks. Waits for the device. Throws
  /// Error{numerical}, on all ranks, if more rows would have arrived at a rank's experts than there is room for. They
  /// were not sent, and the step's result is invalid. Local.
  StepReport report(Turn turn);

  /// One pass of an evaluation. Sums the cross-entropy over this rank's micro-batch, which may be padding in part or
  /// whole, and gathers all ranks' sums for the report. Changes no state; brings weights to Ready. Only enqueues. Its
  /// report() can be read until the next pass but one. Every rank must make the same number of passes. Collective over
  /// the world.
  Turn evaluate(const HostSequences& micro_batch);

  /// Calls `work` with the moving averages in the place of the weights, which come back unchanged behind it: for
  /// evaluations. Without optimizer.ema Error{internal}. What `work` throws ends the run. Collective over the world.
  void with_averages(const std::function<void()>& work);
  bool averaged() const { return averaged_; }  ///< whether the weights are the averages now; Local

  /// Logits [V] (fp32) of the token after `ids`, which holds 1 to seq_len tokens and is the same on every rank. Waits
  /// for the device. Collective over the world.
  std::vector<float> next_logits(const std::vector<std::int32_t>& ids);

  /// Number of steps so far that were replayed as one CUDA graph.
  std::int64_t replays() const { return repeated_.replays(); }

  void observe(StepObserver* observer) { observer_ = observer; }
  /// Shows the factors of the next step's micro-batches to `factors`, padding and what checks compute left out, and its
  /// reduced gradients to `whole`. That step is neither captured nor replayed. Local.
  void show_next(FactorObserver* factors, StepObserver* whole = nullptr) {
    shown_to_.push_back(factors);
    if (whole) watched_by_ = whole;
  }
  ParamSync& sync() { return built_.sync; }
  const Masters& masters() const { return built_.masters; }
  const Optimizers& optimizers() const { return optimizers_; }
  Stream& stream() { return stream_; }

 private:
  Accumulating accumulate(std::uint64_t* digests = nullptr);
  void add_first(Accumulating& sum, const MicroBatch& batch, int computation, std::uint64_t* digests);
  Accumulating spot_checked();
  StepFingerprint computed_again(int computation);
  std::optional<Fault> fault_in(int computation) const;
  double loss_scale() const { return 1.0 / static_cast<double>(plan_.sizes.global * plan_.sizes.length); }
  /// Equal on all ranks; 0 for a batch without a target.
  double target_scale_of(const HostSequences& batch) const;
  Reduced reduce(Accumulating&& sum);
  void decide(const Reduced& gradients);
  ClipResult decided();
  Reduced confirmed(Reduced&& gradients);
  Tensor cleared_digests();
  StepFingerprint fingerprint(const Tensor& sums);
  StepFingerprint fingerprint(const Reduced& gradients);
  Updated update(Reduced&& gradients);
  void exchange_averages();
  void gather_sums();
  Pass pass(GradientSink* gradients, std::int64_t round = 0);
  Pass shown(Pass pass, std::int64_t round) const;
  bool counts(std::int64_t round) const;  ///< whether this rank's micro-batch of the round is no padding
  /// Whether the recipe quantizes anything: only then can a saturating format hide a value that is not finite.
  bool quantizes() const { return plan_.registry.quantizes(); }
  bool replayable() const;
  void require_room(const StepReport& report) const;

  Device& device_;
  const StepPlan& plan_;
  Mesh& mesh_;
  Stream& stream_;
  BuiltModel built_;
  Optimizers optimizers_;
  std::optional<Average> average_;  ///< with optimizer.ema
  StepMemory memory_;
  Tensor digests_;               ///< u64, one a tensor of state: of a state that is saved, or of gradients
  ExternalEvent before_update_;  ///< the update waits for a snapshot of the state to be copied; so do captured steps
  std::vector<std::int64_t> sum_counts_, sum_begins_;
  StepObserver* observer_ = nullptr;
  RepeatedWork repeated_;
  std::optional<RowExchange> exchange_;  ///< with expert parallelism
  Judge judge_;                          ///< empty: a step that would be skipped is not computed again
  SpotJudge spot_judge_;                 ///< empty: no spot checks
  std::int64_t step_ = 0;                ///< number of the step under way
  std::optional<float> fault_;
  std::optional<Fault> once_;
  bool redo_ = false;
  std::vector<FactorObserver*> shown_to_;  ///< until the step's gradients are accumulated
  StepObserver* watched_by_ = nullptr;     ///< until the step's gradients are reduced
  bool averaged_ = false;
};

}  // namespace tessera
