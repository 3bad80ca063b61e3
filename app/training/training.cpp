#include "app/training/training.hpp"

#include <algorithm>
#include <utility>

#include "app/training/step_faults.hpp"
#include "app/training/suspects.hpp"
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
      profile_(plan.config, device, control, report_) {
  if (plan.config.debug.replica_hash_every > 0) replicas_.emplace(device, plan);
  if (plan.config.precision.statistics_every > 0) statistics_.emplace(device, plan, engine_, mesh, control);
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
  const RunConfig& config = plan_.config;
  StateDict state = engine_.state();
  report_.record(state.counters);
  state.counters.step = step_;
  state.counters.next_sample = next_sample_;
  state.counters.tokens = next_sample_ * config.model.seq_len;
  state.counters.seed = config.run.seed;
  return state;
}

Proceed Training::run(const RowSink& sink, const Boundary& boundary, const Pressed& pressed) {
  const RunConfig& config = plan_.config;
  const std::int64_t steps = config.run.steps;
  boundary_ = boundary;
  settled_ = step_ + 2;
  report_.send_to(sink);
  if (!std::exchange(ready_, true)) engine_.initialise();
  bool abandoned = false;  // the evaluation of the last step made
  Proceed proceed = Proceed::go_on;
  while ((proceed = at_boundary(step_)) == Proceed::go_on && step_ < steps) {
    const double rate = learning_rate(config.optimizer, steps, step_ + 1);
    plan_fault(engine_, step_ + 1);
    profile_.before(step_ + 1);
    const std::int64_t spots = config.debug.spot_check_every;
    const bool checked = spots > 0 && (step_ + 1) % spots == 0;
    if (checked) report_.finish();  // a machine's fault ends the run here, and the step before is done
    if (statistics_) statistics_->before(step_ + 1);
    const Turn turn = engine_.step(batches_.training(step_, next_sample_, checked),
                                   {static_cast<float>(rate), report_.norm_limit(step_ + 1)});
    report_.begun(++step_, next_sample_ += config.batch.global, turn);
    if (statistics_ && statistics_->after(step_)) report_.pause();
    if (const CollectiveLog* log = mesh_.log()) log->compare(control_);
    if (replicas_ && step_ % config.debug.replica_hash_every == 0) compare_replicas();
    if (evaluation_due(config, step_) && evaluates())
      abandoned = !report_.evaluated([&] { return evaluate(pressed); });
    profile_.after(step_);
  }
  profile_.finish();
  report_.finish();
  engine_.sync().unshard_all(engine_.stream());  // no collective stays under way
  if (trace_) trace_->finish(engine_.stream());
  return abandoned ? Proceed::stop : proceed;
}

Proceed Training::at_boundary(std::int64_t step) {
  if (step == settled_) early_allocations_ = device_.allocations();
  if (!report_.behind()) report_.finish();
  return boundary_ ? boundary_(step) : Proceed::go_on;
}

void Training::compare_replicas() {
  report_.pause();
  replicas_->compare(engine_.stream(), engine_.sync(), control_, step_);
}

std::optional<double> Training::evaluate(const Pressed& pressed) {
  const Region region(device_.compute(), RegionName::evaluate);
  report_.pause();
  return tessera::evaluate(engine_, batches_, pressed);
}

std::vector<float> Training::next_logits(const std::vector<std::int32_t>& ids) {
  report_.finish();
  report_.pause();
  const auto length = static_cast<std::ptrdiff_t>(plan_.sizes.length);
  return engine_.next_logits({ids.end() - std::min(length, std::ssize(ids)), ids.end()});
}

}  // namespace tessera
