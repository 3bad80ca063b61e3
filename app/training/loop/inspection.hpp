#pragma once
#include <optional>

#include "app/training/loop/statistics.hpp"
#include "app/training/loop/tensor_dump.hpp"

namespace tessera {

/// What a run looks at inside chosen steps: precision.statistics_every and debug.tensors. One a rank.
class Inspection {
 public:
  Inspection(Device& device, const RunPlan& plan, Engine& engine, Mesh& mesh, Control& control) {
    if (plan.config.precision.statistics_every > 0) statistics_.emplace(device, plan, engine, mesh, control);
    if (!plan.config.debug.tensors.step.empty()) tensors_.emplace(device, plan, engine, control);
  }

  /// Where statistics of quantizers go, if any are made. Local.
  void send_statistics_to(const StatisticsSink& sink) {
    if (statistics_) statistics_->send_to(sink);
  }
  /// Before step `step` is enqueued. Collective over the world.
  void before(std::int64_t step) {
    if (statistics_) statistics_->before(step);
    if (tensors_) tensors_->before(step);
  }
  /// After it; returns whether it was looked into, and so has taken longer. Throws as Statistics and TensorDump do.
  /// Collective over the world.
  bool after(std::int64_t step) {
    const bool measured = statistics_ && statistics_->after(step), taken = tensors_ && tensors_->after(step);
    return measured || taken;
  }

 private:
  std::optional<Statistics> statistics_;
  std::optional<TensorDump> tensors_;
};

}  // namespace tessera
