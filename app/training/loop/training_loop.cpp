#include "app/training/loop/training_loop.hpp"

#include <cstdio>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "app/training/loop/generation.hpp"
#include "app/training/tell/step_row.hpp"
#include "io/data/utf8.hpp"
#include "kernels/base/attempt.hpp"

namespace tessera {

TrainingLoop::TrainingLoop(const Uses& uses)
    : plan_(uses.plan),
      encoding_(uses.encoding),
      control_(uses.control),
      training_(uses.training),
      saving_(uses.saving),
      log_(uses.log),
      sampled_(uses.sampled),
      pressed_([this] { return saving_.pressed(); }) {}

/// A stop comes before a sample that is due: the start that goes on from there prints it.
Proceed TrainingLoop::run(const std::optional<MetricsRow>& unfinished) {
  bool whole = complete(unfinished);  // whether the last evaluation was made to its end
  training_.begin([this](const MetricsRow& row) { return log_ ? log_->row(saving_.timed(row)) : Problems(); });
  training_.send_statistics_to([this](std::int64_t step, const std::vector<QuantizerLine>& lines) {
    return log_ ? log_->quantized(step, lines) : Problems();
  });
  Proceed proceed = Proceed::go_on;
  const auto goes_on = [&] { return proceed == Proceed::go_on || proceed == Proceed::change; };
  while (proceed = saving_.at_boundary(training_.step()), goes_on()) {
    if (!sample_if_due(training_.step())) continue;  // abandoned: the boundary again, which saves and stops
    if (proceed == Proceed::change || training_.done()) break;
    training_.make_step();
    whole = training_.evaluate_if_due(pressed_);
    training_.end_step();
  }
  training_.finish();
  return whole ? proceed : Proceed::stop;
}

/// Makes the evaluation of the step done last, if the start before has abandoned it for a stop, and completes its row.
/// False if this one was abandoned too.
bool TrainingLoop::complete(const std::optional<MetricsRow>& unfinished) {
  if (control_.max(unfinished ? 1 : 0) == 0) return true;
  const std::optional<std::vector<double>> losses = training_.evaluate(pressed_);
  Problems problems;
  if (losses && unfinished)
    attempt(problems, [&] {
      MetricsRow whole = *unfinished;
      add_evaluation(whole, plan_.config, *losses);
      whole.probed = training_.probed();
      log_->evaluated(whole);
    });
  control_.agree(problems);
  if (losses) saving_.add_evaluation(*losses);
  return losses.has_value();
}

/// The last step's sample is not part of the loop: it comes after the closing report.
bool TrainingLoop::sample_if_due(std::int64_t step) {
  const std::int64_t every = plan_.config.sample.every_steps;
  const bool due = every > 0 && step > 0 && step % every == 0 && step < plan_.config.run.steps && step != sampled_;
  return !due || sample();
}

bool TrainingLoop::sample() {
  const SampleConfig& sample = plan_.config.sample;
  bool abandoned = sample.tokens > 0 && pressed_();
  if (sample.tokens == 0 || abandoned) return !abandoned;
  const auto show = [this](const std::string& text) {
    if (plan_.ranks.world.rank != 0) return;
    fmt::print("{}", text);
    std::fflush(stdout);
  };
  const NextLogits next = [this](const std::vector<std::int32_t>& ids) { return training_.next_logits(ids); };
  show("sample: " + sample.prompt);
  Characters characters(Controls::replaced);
  generate(next, {.seed = plan_.seed}, encoding_.encode(sample.prompt), sample.tokens, [&](std::int32_t token) {
    show(characters.take(encoding_.bytes_of(token)));
    return token != encoding_.end_of_text() && !(abandoned = pressed_());
  });
  show(characters.rest() + "\n");
  return !abandoned;
}

}  // namespace tessera
