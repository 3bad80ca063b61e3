#pragma once
#include <functional>
#include <optional>

#include "core/comm/mesh.hpp"
#include "core/model/row_exchange.hpp"
#include "core/optim/optimizers.hpp"
#include "core/params/param_sync.hpp"
#include "core/state/state_dict.hpp"
#include "core/step/repeated_work.hpp"
#include "core/step/step_memory.hpp"
#include "core/step/step_plan.hpp"
#include "kernels/base/external_event.hpp"

namespace tessera {

/// Sees a step from inside, on the stream, without changing it: what the trace is made of.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  virtual void begun() = 0;                                            ///< what follows is the step's
  virtual void reduced(Stream& stream, const Reduced& gradients) = 0;  ///< summed over ranks, before clipping
  virtual void stepped(Stream& stream) = 0;                            ///< masters updated
};

/// A StepPlan built on a device: a measuring one to plan, a real one to run. One a rank.
class Engine {
 public:
  /// `mesh` connects the ranks that were planned for (else Error{internal}).
  Engine(Device& device, const StepPlan& plan, Mesh& mesh);

  /// Sets masters, state and counters of the rules as in a fresh run; the first forward gathers. Collective.
  void initialise();
  /// The same with other weights: `fill` gets the drawn ones, and no other state, and overwrites any of them; an
  /// exception of `fill` leaves through here. Collective.
  void initialise(const std::function<void(StateDict&)>& fill);

  /// Masters and state of the rules as named tensors, and the rules' counters; step, tokens and position in the data
  /// are the caller's. Waits for the device. The next step's update waits for before_update.
  StateDict state();
  /// The same tensors, whatever they hold, with the counters of a fresh run. Waits for nothing. Local.
  StateDict fresh_state() const;
  /// In place of initialise(): `fill` gets the state and counters of a fresh run and writes all of them; an exception
  /// of `fill` leaves through here. Weights end Stale: the first forward gathers. Collective.
  void restore(const std::function<void(StateDict&)>& fill);

  /// One optimizer step: forward, backward, reduction, clip, update, publication. Only enqueues; the bits depend on
  /// nothing but its arguments and the state. Its report() may be read until the next step but one. Collective.
  /// With StepPlan::graph all but tokens and report is RepeatedWork, unless an observer, a timeline that records, an
  /// exchange of rows, whose counts the host reads, or collectives that need the host forbid a capture.
  Turn step(const HostSequences& batch, const StepScalars& scalars);
  /// For tests: faults of the next step on this rank, which then is neither captured nor replayed.
  void spoil_next(float value) { fault_ = value; }  ///< Pass::fault of its first micro-batch
  void redo_next() { redo_ = true; }                ///< its reduced gradients are dropped and made again; on all ranks

  /// Sums, norm and flags of that step or evaluation, the same on all ranks. Waits for the device. Throws
  /// Error{numerical} on all ranks where more rows arrived at a rank's experts than there is room for; what else it
  /// holds is worth nothing then.
  StepReport report(Turn turn);

  /// One pass of an evaluation: cross-entropy summed over this rank's micro-batch, which may be padding in part or
  /// whole, gathered into the report's sums. Settles the weights and reads them, nothing else. Only enqueues; its
  /// report() may be read until the next pass but one. Collective over the world: every rank makes as many passes.
  Turn evaluate(const HostSequences& micro_batch);

  /// Logits [V] (fp32) after the last of `ids`; `ids` holds at most seq_len tokens. Waits for the device. Collective
  /// over the world: every rank asks, with the same ids.
  std::vector<float> next_logits(const std::vector<std::int32_t>& ids);

  /// Steps so far that were replayed as one graph.
  std::int64_t replays() const { return repeated_.replays(); }

  void observe(StepObserver* observer) { observer_ = observer; }
  ParamSync& sync() { return sync_; }
  const Masters& masters() const { return masters_; }
  const Optimizers& optimizers() const { return optimizers_; }
  Stream& stream() { return stream_; }

 private:
  Accumulating accumulate();
  Reduced reduce(Accumulating&& sum);
  Updated update(Reduced&& gradients);
  void gather_sums();
  Pass pass(GradientSink* gradients);
  /// The step's word for values that are not finite before they are quantized.
  Tensor not_finite() const;
  bool replayable() const;
  void require_room(const StepReport& report) const;
  /// Masters alone, as named tensors.
  StateDict weights() const;

  Device& device_;
  const StepPlan& plan_;
  Mesh& mesh_;
  Stream& stream_;
  Masters masters_;
  ParamSync sync_;
  Optimizers optimizers_;
  StepMemory memory_;
  Arena activations_;
  Tensor digests_;  ///< u64, one a tensor of state
  ExternalEvent before_update_;  ///< reached unless a copy of the state is under way; captured steps wait for it too
  std::vector<std::int64_t> sum_counts_, sum_begins_;
  StepObserver* observer_ = nullptr;
  RepeatedWork repeated_;
  std::optional<RowExchange> exchange_;  ///< with expert parallelism
  std::optional<float> fault_;
  bool redo_ = false;
};

}  // namespace tessera
