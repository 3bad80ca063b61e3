#include "app/training/loop/training.hpp"

#include <algorithm>
#include <utility>

#include "app/training/loop/step_faults.hpp"
#include "app/training/loop/suspects.hpp"
#include "core/device/region.hpp"
#include "core/optim/schedule.hpp"

namespace tessera {

Training::Training(Device& device, const RunPlan& plan, Batches batches, Mesh& mesh, Control& control,
                   std::vector<Record>& records)
    : device_(device),
      plan_(plan),
      batches_(std::move(batches)),
      mesh_(mesh),
      control_(control),
      engine_(device, plan, mesh),
      trace_(plan.config.debug.trace.empty()
                 ? nullptr
                 : std::make_unique<Trace>(plan.config.debug.trace, device, plan, engine_, control, records)),
      report_(device, plan.config, engine_, control, trace_.get(), reading_of(device, trace_.get())),
      profile_(plan.config, device, control, report_),
      inspection_(device, plan, engine_, mesh, control),
      step_timeout_(plan.config.comm) {
  if (plan.config.debug.replica_hash_every > 0) replicas_.emplace(device, plan);
  if (plan.config.debug.spot_check_every > 0) engine_.spot_check(judge_of_spot_checks(plan, control));
  if (confirms_skips(plan.config, device)) engine_.confirm_skips(judge_of_suspects(plan, control));
}

void Training::restore(const std::function<void(StateDict&)>& fill) {
  engine_.restore([&](StateDict& state) {
    fill(state);
    step_ = state.counters.step;
    next_sample_ = state.counters.next_sample;
    report_.resume(state.counters);
  });
  ready_ = true;
}

void Training::initialise(const std::function<void(StateDict&)>& fill) {
  engine_.initialise(fill);
  ready_ = true;
}

StateDict Training::state() {
  report_.finish();
  report_.pause();
  StateDict state = engine_.state();
  report_.record(state.counters);
  state.counters.step = step_;
  state.counters.next_sample = next_sample_;
  state.counters.tokens = next_sample_ * plan_.config.model.seq_len;
  state.counters.seed = plan_.config.run.seed;
  return state;
}

void Training::begin(const RowSink& sink) {
  settled_ = step_ + 2;
  report_.send_to(sink);
  if (!std::exchange(ready_, true)) engine_.initialise();
}

void Training::make_step() {
  const RunConfig& config = plan_.config;
  const std::int64_t number = step_ + 1;
  control_.wait_at_most(step_timeout_.begin_turn(StepTimeout::Clock::now()));
  plan_fault(engine_, number);
  profile_.before(number);
  const bool checked = config.debug.spot_check_every > 0 && number % config.debug.spot_check_every == 0;
  if (checked) report_.finish();  // a machine's fault ends the run here, and the step before is done
  HostSequences& batch = batches_.training(step_, next_sample_, checked);
  if (replay_) replay_->give(batch, batches_.pieces(), number, control_);
  inspection_.before(number);
  const auto rate = static_cast<float>(learning_rate(config.optimizer, config.run.steps, number));
  const Turn turn = engine_.step(batch, {rate, report_.norm_limit(number)});
  report_.begun({++step_, next_sample_ += config.batch.global, batch.counted}, turn);
  if (inspection_.after(step_)) pause();
  if (const CollectiveLog* log = mesh_.log()) log->compare(control_);
  if (replicas_ && step_ % config.debug.replica_hash_every == 0) {
    report_.pause();
    replicas_->compare(engine_.stream(), engine_.sync(), control_, step_);
  }
}

bool Training::evaluate_if_due(const Pressed& pressed) {
  evaluated_.reset();
  if (!evaluation_due(plan_.config, step_) || !evaluates()) return true;
  return report_.evaluated([&] { return evaluated_ = evaluate(pressed); }, probed_);
}

void Training::end_step() {
  profile_.after(step_);
  if (step_ == settled_) early_allocations_ = device_.allocations();
  if (!report_.behind()) report_.finish();
}

void Training::finish() {
  control_.wait_at_most(step_timeout_.outside());
  profile_.finish();
  report_.finish();
  engine_.sync().unshard_all(engine_.stream());  // no collective stays under way
  if (trace_) trace_->finish(engine_.stream());
}

std::optional<std::vector<double>> Training::evaluate(const Pressed& pressed) {
  const Region region(device_.compute(), RegionName::evaluate);
  pause();
  return evaluation_losses(engine_, batches_, plan_.config.eval.weights, pressed, &probed_);
}

std::vector<float> Training::next_logits(const std::vector<std::int32_t>& ids) {
  report_.finish();
  pause();
  return engine_.next_logits({ids.end() - std::min<std::ptrdiff_t>(plan_.sizes.length, std::ssize(ids)), ids.end()});
}

}  // namespace tessera
