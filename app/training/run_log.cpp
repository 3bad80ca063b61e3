#include "app/training/run_log.hpp"

#include <cstdio>
#include <numeric>

#include "io/metrics/console.hpp"

namespace tessera {

RunLog::RunLog(const RunPlan& plan, std::int64_t step)
    : plan_(plan),
      begun_at_(step),
      metrics_(std::filesystem::path(plan.config.checkpoint.dir.get()) / "metrics.jsonl", step),
      memory_(std::accumulate(plan.memory.begin(), plan.memory.end(), std::int64_t{0})) {}

double RunLog::seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

bool RunLog::worth_a_line(const MetricsRow& row) const {
  const bool edge = row.step == 1 || row.step == plan_.config.run.steps;
  return edge || row.eval_loss || row.skipped || Clock::now() - printed_ >= std::chrono::seconds(1);
}

Problems RunLog::row(const MetricsRow& row) {
  if (worth_a_line(row)) {
    printed_ = Clock::now();
    const double left =
        seconds() / static_cast<double>(row.step - begun_at_) * static_cast<double>(plan_.config.run.steps - row.step);
    print_line(stdout, to_line({.step = row.step,
                                .steps = plan_.config.run.steps,
                                .loss = row.loss,
                                .eval_loss = row.eval_loss,
                                .norm = row.grad_norm,
                                .lr = row.lr,
                                .step_ms = row.step_ms,
                                .mfu = std::nullopt,
                                .tokens_per_s = row.tokens_per_s,
                                .memory_bytes = memory_,
                                .seconds_left = left,
                                .skipped = row.skipped}));
  }
  MetricsRow whole = row;
  whole.restart = metrics_.restarts();
  return metrics_.append(whole);
}

}  // namespace tessera
