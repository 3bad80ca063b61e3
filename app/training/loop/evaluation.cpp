#include "app/training/loop/evaluation.hpp"

#include <utility>

namespace tessera {

bool evaluation_due(const RunConfig& config, std::int64_t step) {
  const std::int64_t every = config.eval.every_steps;
  return every > 0 && (step % every == 0 || step == config.run.steps);
}

std::optional<double> evaluation_loss(Engine& engine, Batches& batches, const Pressed& pressed,
                                      std::vector<std::int32_t>* chosen) {
  double loss = 0;
  const auto add = [&](Turn turn) {
    StepReport report = engine.report(turn);
    if (chosen) *std::exchange(chosen, nullptr) = std::move(report.chosen);
    for (const StepSums& piece : report.sums) loss += piece.loss;  // piece j is rank j mod ranks'
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
