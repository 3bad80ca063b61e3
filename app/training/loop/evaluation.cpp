#include "app/training/loop/evaluation.hpp"

namespace tessera {

bool evaluation_due(const RunConfig& config, std::int64_t step) {
  const std::int64_t every = config.eval.every_steps;
  return every > 0 && (step % every == 0 || step == config.run.steps);
}

std::optional<double> evaluation_loss(Engine& engine, Batches& batches, const Pressed& pressed) {
  double loss = 0;
  const auto add = [&](Turn turn) {
    for (const StepSums& piece : engine.report(turn).sums) loss += piece.loss;  // piece j is rank j mod ranks'
  };
  std::optional<Turn> before;  // the pass before, whose report is read while the next pass runs
  bool abandoned = false;
  for (std::int64_t pass = 0; pass < batches.evaluation().passes(); ++pass) {
    if (pressed && (abandoned = pressed())) break;
    const Turn turn = engine.evaluate(batches.evaluation(pass));
    if (before) add(*before);
    before = turn;
  }
  if (before) add(*before);
  if (abandoned) return std::nullopt;
  return loss / static_cast<double>(batches.evaluated_targets());
}

}  // namespace tessera
