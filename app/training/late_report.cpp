#include "app/training/late_report.hpp"

#include <fmt/format.h>

#include <utility>

#include "app/training/step_row.hpp"
#include "core/device/region.hpp"

namespace tessera {

Reading reading_of(Device& device, const Trace* trace) {
  return device.compute().native() != nullptr && !trace ? Reading::late : Reading::at_once;
}

LateReport::LateReport(Device& device, const RunConfig& config, Engine& engine, Control& control, Trace* trace,
                       Reading reading)
    : device_(device), config_(config), engine_(engine), control_(control), trace_(trace), reading_(reading) {}

void LateReport::begun(std::int64_t step, Turn turn) {
  finish();
  unread_ = Unread{step, turn, std::exchange(straight_on_, true), std::nullopt};
  if (!behind()) read();
}

void LateReport::read() {
  if (unread_->row) return;
  const Region region(device_, "report");
  const StepReport report = engine_.report(unread_->turn);
  const double seconds = report.end.seconds_since(unread_->straight_on ? last_end_ : report.begin);
  last_end_ = report.end;
  unread_->row = row_of(config_, unread_->step, report, seconds);
  if (trace_) trace_->report(unread_->step, report, unread_->row->loss);
  skips_ = unread_->row->skipped ? skips_ + 1 : 0;
}

void LateReport::evaluated(const std::function<double()>& evaluate) {
  read();
  unread_->row->eval_loss = static_cast<float>(evaluate());
}

void LateReport::finish() {
  if (!unread_) return;
  read();
  const MetricsRow row = *std::exchange(unread_, std::nullopt)->row;
  control_.agree(sink_ ? sink_(row) : Problems());
  if (skips_ >= config_.optimizer.max_skips)  // every rank saw the same report, so all throw here together
    throw Error(Exit::numerical,
                fmt::format("{} steps in a row had gradients that are not finite (optimizer.max_skips); lower "
                            "optimizer.lr, lengthen the warm-up, or look at the data",
                            skips_));
}

}  // namespace tessera
