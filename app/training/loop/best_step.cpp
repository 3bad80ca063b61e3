#include "app/training/loop/best_step.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <sstream>

#include "kernels/base/attempt.hpp"

namespace tessera {

void BestStep::add(std::int64_t step, float loss) {
  if (std::isfinite(loss)) losses_.insert_or_assign(step, loss);
  const bool gain = std::isfinite(loss) && (step_ < 0 || loss < loss_);  // mutation: an_equal_loss_is_a_gain
  since_ = gain ? 0 : since_ + 1;
  if (!gain) return;
  step_ = step;
  loss_ = loss;
}

std::vector<std::int64_t> BestStep::by_loss() const {
  std::vector<std::int64_t> steps;
  for (const auto& evaluated : losses_) steps.push_back(evaluated.first);
  std::ranges::stable_sort(steps, {}, [&](std::int64_t step) { return losses_.at(step); });
  return steps;
}

std::optional<float> loss_of_set(const MetricsRow& row, const std::string& name) {
  const std::string called = name.empty() ? held_out : name;
  if (row.eval_sets.empty()) return called == held_out ? row.eval_loss : std::nullopt;
  const auto found = std::ranges::find(row.eval_sets, called, &EvaluatedSet::name);
  return found == row.eval_sets.end() ? std::nullopt : std::optional(found->loss);
}

BestStep best_step_of(const RunConfig& config, std::int64_t reached, Control& control) {
  Problems problems;
  const std::vector<std::string> names = config.data.evaluation_names();
  const std::string name = names.empty() ? "" : names[followed_set(config)];
  std::ostringstream found;  // of each evaluation its step and loss; hexadecimal, so that no bit is lost
  found << std::hexfloat;
  if (control.rank() == 0)
    attempt(problems, [&] {
      const std::filesystem::path file = std::filesystem::path(config.checkpoint.dir.get()) / metrics_file;
      if (!std::filesystem::exists(file)) return;
      for (const MetricsRow& row : read_metrics(file))
        if (const auto loss = loss_of_set(row, name); loss && row.step <= reached)
          found << row.step << ' ' << *loss << '\n';
    });
  control.agree(problems);
  std::istringstream rows(control.broadcast(found.str()));
  BestStep best;
  std::string loss;
  for (std::int64_t step = 0; rows >> step >> loss;) best.add(step, std::strtof(loss.c_str(), nullptr));
  return best;
}

}  // namespace tessera
