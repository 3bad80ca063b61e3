#include "app/training/tell/late_report.hpp"

#include <fmt/format.h>

#include <utility>

#include "app/training/tell/chain.hpp"
#include "core/device/region.hpp"

namespace tessera {

Reading reading_of(Device& device, const Trace* trace) {
  return device.compute().native() != nullptr && !trace ? Reading::late : Reading::at_once;
}

LateReport::LateReport(Device& device, const RunConfig& config, Engine& engine, Control& control, Trace* trace,
                       Reading reading)
    : device_(device), config_(config), engine_(engine), control_(control), trace_(trace), reading_(reading) {}

void LateReport::resume(const StateCounters& counters) {
  skips_ = counters.skips_in_a_row;
  chain_ = counters.chain;
  if (config_.optimizer.skip_spikes > 0) window_.resume(counters.norms, counters.step);
}

void LateReport::record(StateCounters& counters) const {
  counters.skips_in_a_row = skips_;
  counters.norms = window_.norms();
  counters.chain = chain_;
}

float LateReport::norm_limit(std::int64_t step) const {
  const double deviations = config_.optimizer.skip_spikes;
  return deviations > 0 ? window_.limit(step, deviations) : StepScalars().norm_limit;
}

void LateReport::begun(const Progress& progress, Turn turn) {
  finish();
  unread_ = Unread{progress, turn, std::exchange(back_to_back_, true), std::nullopt};
  if (!behind()) read();
}

void LateReport::read() {
  if (unread_->row) return;
  const Region region(device_.compute(), RegionName::report);
  const StepReport report = engine_.report(unread_->turn);
  const double seconds = report.end.seconds_since(unread_->back_to_back ? last_end_ : report.begin);
  last_end_ = report.end;
  unread_->row = row_of(config_, unread_->progress, report, seconds);
  if (choices_) unread_->problems.add(choices_->write(unread_->progress.step, report));
  if (trace_) trace_->report(unread_->progress.step, report, unread_->row->loss, chain_);
  chain_ = continued(chain_, unread_->progress.step, report);
  skips_ = report.clip.skip == ClipResult::not_finite ? skips_ + 1 : 0;
  if (config_.optimizer.skip_spikes > 0) window_.add(report.clip.norm);
}

bool LateReport::evaluated(const std::function<std::optional<std::vector<double>>()>& evaluate,
                           const std::vector<std::int32_t>& probed) {
  read();
  const std::optional<std::vector<double>> losses = evaluate();
  if (losses) {
    add_evaluation(*unread_->row, config_, *losses);
    unread_->row->probed = probed;
  }
  return losses.has_value();
}

void LateReport::finish() {
  if (!unread_) return;
  read();
  auto [row, problems] = std::pair(*unread_->row, unread_->problems);
  unread_.reset();
  if (sink_) problems.add(sink_(row));
  control_.agree(problems);
  if (skips_ >= config_.optimizer.max_skips)  // reports are the same on every rank, so all throw together
    throw Error(Exit::numerical,
                fmt::format("{} steps in a row had gradients that are not finite (optimizer.max_skips); lower "
                            "optimizer.lr, lengthen the warm-up, or look at the data",
                            skips_));
}

}  // namespace tessera
