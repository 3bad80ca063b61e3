#include "app/training/loop/evaluation.hpp"

#include <utility>

namespace tessera {

bool evaluation_due(const RunConfig& config, std::int64_t step) {
  const std::int64_t every = config.eval.every_steps;
  return every > 0 && (step % every == 0 || step == config.run.steps);
}

namespace {

/// That of one set. `chosen`, unless null, becomes StepReport::chosen of the first pass, and null.
std::optional<double> loss_of(std::size_t set, Engine& engine, Batches& batches, const Pressed& pressed,
                              std::vector<std::int32_t>*& chosen) {
  double loss = 0;
  const auto add = [&](Turn turn) {
    StepReport report = engine.report(turn);
    if (chosen) *std::exchange(chosen, nullptr) = std::move(report.chosen);
    for (const StepSums& piece : report.sums) loss += piece.loss;  // piece j is rank j mod ranks'
  };
  std::optional<Turn> before;  // the pass before, whose report is read while the next pass runs
  bool abandoned = false;
  for (std::int64_t pass = 0; pass < batches.plan_of(set).passes(); ++pass) {
    if (pressed && (abandoned = pressed())) break;
    const Turn turn = engine.evaluate(batches.evaluation(set, pass));
    if (before) add(*before);
    before = turn;
  }
  if (before) add(*before);
  if (abandoned) return std::nullopt;
  return loss / static_cast<double>(batches.evaluated_targets(set));
}

/// Those of all sets.
std::optional<std::vector<double>> losses_of(Engine& engine, Batches& batches, const Pressed& pressed,
                                             std::vector<std::int32_t>* chosen) {
  std::vector<double> losses;
  for (std::size_t set = 0; set < batches.sets(); ++set) {
    const std::optional<double> loss = loss_of(set, engine, batches, pressed, chosen);
    if (!loss) return std::nullopt;
    losses.push_back(*loss);
  }
  return losses;
}

}  // namespace

std::optional<std::vector<double>> evaluation_losses(Engine& engine, Batches& batches, EvaluatedWeights weights,
                                                     const Pressed& pressed, std::vector<std::int32_t>* chosen) {
  if (weights == EvaluatedWeights::trained) return losses_of(engine, batches, pressed, chosen);
  std::optional<std::vector<double>> losses;
  engine.with_averages([&] { losses = losses_of(engine, batches, pressed, chosen); });
  return losses;
}

}  // namespace tessera
