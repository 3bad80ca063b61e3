#include "app/training/tell/step_row.hpp"

#include <algorithm>

#include "app/training/tell/routing_rows.hpp"
#include "core/config/config.hpp"
#include "core/optim/schedule.hpp"

namespace tessera {
namespace {

/// Adds the ranks' sums in rank order, so that every rank gets the same bits.
StepSums total(const StepReport& report) {
  StepSums all;
  for (const StepSums& sums : report.sums) {
    all.loss += sums.loss;
    all.balance += sums.balance;
    all.z += sums.z;
    all.busiest += sums.busiest;
  }
  return all;
}

/// The unevenness of the step's routing, and its rows where they are due.
void add_routing(MetricsRow& row, const RunConfig& config, const StepReport& report) {
  std::vector<RoutingRow> rows = routing_rows(config, row.step, report);
  if (rows.empty()) return;
  double sum = 0, most = 0;
  for (const RoutingRow& layer : rows) {
    sum += layer.max_vio();
    most = std::max(most, layer.max_vio());
  }
  row.max_vio = sum / static_cast<double>(rows.size());
  row.max_vio_most = most;
  if (row.step % config.routing.every_steps == 0) row.routing = std::move(rows);
}

}  // namespace

MetricsRow row_of(const RunConfig& config, const Progress& progress, const StepReport& report, double seconds) {
  const StepSums sums = total(report);
  const auto sequences = static_cast<double>(config.batch.global);
  const double tokens = sequences * static_cast<double>(config.model.seq_len);
  const auto& moe = config.model.moe;
  // Without experts 0, so that means become 0/0 = NaN.
  const double layers = moe ? static_cast<double>(moe->blocks().among(config.model.layers)) : 0;
  MetricsRow row;
  row.step = progress.step;
  const double targets = progress.targets ? static_cast<double>(*progress.targets) : tokens;
  row.loss = targets > 0 ? static_cast<float>(sums.loss / targets) : 0;
  row.targets = progress.targets;
  row.balance_loss = static_cast<float>(sums.balance / (sequences * layers));
  row.z_loss = static_cast<float>(sums.z / (tokens * layers));
  if (moe)
    row.expert_load = static_cast<float>(sums.busiest * static_cast<double>(moe->experts) /
                                         (tokens * layers * static_cast<double>(moe->top_k)));
  row.grad_norm = report.clip.norm;
  row.clip_coef = report.clip.coefficient;
  row.lr = static_cast<float>(learning_rate(config.optimizer, config.run.steps, progress.step));
  row.tokens = progress.samples * config.model.seq_len;
  row.step_ms = seconds * 1e3;
  row.tokens_per_s = tokens / seconds;
  if (config.parallel.expert > 1)
    for (const StepSums& one : report.sums)
      row.expert_rows = std::max(row.expert_rows.value_or(0), one.arrivals.most);
  add_routing(row, config, report);
  row.skipped = report.clip.skip != 0;
  row.spike = report.clip.skip == ClipResult::spike;
  return row;
}

void add_evaluation(MetricsRow& row, const RunConfig& config, std::span<const double> losses) {
  row.eval_loss = static_cast<float>(losses[followed_set(config)]);
  row.eval_sets.clear();
  if (config.data.eval_sets.empty()) return;
  const std::vector<std::string> names = config.data.evaluation_names();
  for (std::size_t i = 0; i < names.size(); ++i)
    row.eval_sets.push_back({names[i], static_cast<float>(losses[i]), std::nullopt});
}

}  // namespace tessera
