#include "app/training/training.hpp"

#include <fmt/format.h>

#include <utility>

#include "app/training/step_row.hpp"
#include "core/device/region.hpp"
#include "core/optim/schedule.hpp"

namespace tessera {

Training::Training(Device& device, const RunPlan& plan, Batches batches, Communicator& communicator, Control& control,
                   std::vector<Record>& records)
    : device_(device),
      plan_(plan),
      batches_(std::move(batches)),
      communicator_(communicator),
      control_(control),
      engine_(device, plan, communicator) {
  const std::string& path = plan.config.debug.trace;
  if (!path.empty()) trace_.emplace(path, device, plan, engine_, control, records);
  if (plan.config.debug.replica_hash_every > 0) replicas_.emplace(device, plan);
}

bool Training::evaluation_due(std::int64_t step) const {
  const EvalConfig& eval = plan_.config.eval;
  return eval.every_steps > 0 && (step % eval.every_steps == 0 || step == plan_.config.run.steps);
}

void Training::restore(const std::function<void(StateDict&)>& fill) {
  engine_.restore([&](StateDict& state) {
    fill(state);
    step_ = state.counters.step;
    skips_ = state.counters.skips_in_a_row;
  });
  ready_ = true;
}

void Training::initialise(const std::function<void(StateDict&)>& fill) {
  engine_.initialise(fill);
  ready_ = true;
}

StateDict Training::state() {
  catch_up();
  straight_on_ = false;
  const RunConfig& config = plan_.config;
  StateDict state = engine_.state();
  state.counters.step = step_;
  state.counters.skips_in_a_row = skips_;
  state.counters.next_sample = step_ * config.batch.global;
  state.counters.tokens = state.counters.next_sample * config.model.seq_len;
  state.counters.seed = config.run.seed;
  return state;
}

Proceed Training::run(const RowSink& sink, const Boundary& boundary) {
  const RunConfig& config = plan_.config;
  sink_ = sink;
  if (!std::exchange(ready_, true)) engine_.initialise();
  const std::int64_t allocations_settle = step_ + 2;
  // Where work goes on by itself, its report is read while the next step runs. A trace wants it before that.
  const bool behind = device_.compute().native() != nullptr && !trace_;
  Proceed proceed = boundary ? boundary(step_) : Proceed::go_on;
  while (step_ < config.run.steps && proceed == Proceed::go_on) {
    const std::int64_t step = step_ + 1;
    const Turn turn = engine_.step(batches_.training(step - 1),
                                   static_cast<float>(learning_rate(config.optimizer, config.run.steps, step)));
    catch_up();
    unread_ = Unread{step, turn, std::exchange(straight_on_, true), std::nullopt};
    step_ = step;
    if (!behind || evaluation_due(step)) read();
    if (const CollectiveLog* log = communicator_.log()) log->compare(control_);
    if (replicas_ && step % config.debug.replica_hash_every == 0) {
      straight_on_ = false;
      replicas_->compare(engine_.stream(), engine_.sync(), control_, step);
    }
    if (evaluation_due(step)) unread_->row->eval_loss = static_cast<float>(evaluate());
    if (step == allocations_settle) early_allocations_ = device_.allocations();
    if (!behind) catch_up();
    if (boundary) proceed = boundary(step);
  }
  catch_up();
  engine_.sync().settle(engine_.stream());
  if (trace_) trace_->finish(engine_.stream());
  return proceed;
}

void Training::read() {
  const Region region(device_, "report");
  const StepReport report = engine_.report(unread_->turn);
  const double seconds = report.end.seconds_since(unread_->straight_on ? last_end_ : report.begin);
  last_end_ = report.end;
  unread_->row = row_of(plan_.config, unread_->step, report, seconds);
  if (trace_) trace_->report(unread_->step, report, unread_->row->loss);
  skips_ = unread_->row->skipped ? skips_ + 1 : 0;
}

void Training::catch_up() {
  if (!unread_) return;
  if (!unread_->row) read();
  const MetricsRow row = *std::exchange(unread_, std::nullopt)->row;
  control_.agree(sink_ ? sink_(row) : Problems());
  if (skips_ >= plan_.config.optimizer.max_skips)  // every rank saw the same report, so all throw here together
    throw Error(Exit::numerical,
                fmt::format("{} steps in a row had gradients that are not finite (optimizer.max_skips); lower "
                            "optimizer.lr, lengthen the warm-up, or look at the data",
                            skips_));
}

double Training::evaluate() {
  straight_on_ = false;
  double loss = 0;
  for (std::int64_t round = 0; round < batches_.evaluation_rounds(); ++round)
    loss += total(engine_.evaluate(batches_.evaluation(round))).loss;
  return loss / static_cast<double>(batches_.evaluation_windows() * plan_.config.model.seq_len);
}

}  // namespace tessera
