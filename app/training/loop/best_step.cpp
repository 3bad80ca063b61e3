#include "app/training/loop/best_step.hpp"

#include <cmath>
#include <filesystem>
#include <sstream>

#include "io/metrics/metrics_log.hpp"
#include "kernels/base/attempt.hpp"

namespace tessera {

void BestStep::add(std::int64_t step, float loss) {
  const bool gain = std::isfinite(loss) && (step_ < 0 || loss < loss_);
  since_ = gain ? 0 : since_ + 1;
  if (!gain) return;
  step_ = step;
  loss_ = loss;
}

BestStep best_step_of(const RunConfig& config, std::int64_t reached, Control& control) {
  Problems problems;
  std::ostringstream found;  // of each evaluation its step and loss; hexadecimal, so that no bit is lost
  found << std::hexfloat;
  if (control.rank() == 0)
    attempt(problems, [&] {
      const std::filesystem::path file = std::filesystem::path(config.checkpoint.dir.get()) / metrics_file;
      if (!std::filesystem::exists(file)) return;
      for (const MetricsRow& row : read_metrics(file))
        if (row.eval_loss && row.step <= reached) found << row.step << ' ' << *row.eval_loss << '\n';
    });
  control.agree(problems);
  std::istringstream rows(control.broadcast(found.str()));
  BestStep best;
  std::string loss;
  for (std::int64_t step = 0; rows >> step >> loss;) best.add(step, std::strtof(loss.c_str(), nullptr));
  return best;
}

}  // namespace tessera
