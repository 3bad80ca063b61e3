#pragma once
#include <functional>
#include <vector>

#include "core/comm/control.hpp"
#include "core/plan/plan.hpp"
#include "core/step/engine.hpp"
#include "core/step/quantizer_statistics.hpp"

namespace tessera {

/// Takes the lines of a step, of all ranks together, on rank 0; returns problems.
using StatisticsSink = std::function<Problems(std::int64_t step, const std::vector<QuantizerLine>&)>;

/// precision.statistics_every in a run: measures the steps that it divides. One a rank.
class Statistics {
 public:
  /// Allocates what a plan with this key counts.
  Statistics(Device& device, const RunPlan& plan, Engine& engine, Mesh& mesh, Control& control);

  void send_to(const StatisticsSink& sink) { sink_ = sink; }
  /// Before a step is enqueued: measures its weights, and has it measure factors, if it is due. Collective over the
  /// world.
  void before(std::int64_t step);
  /// After it, if it was due: waits for the device, adds up the ranks' sums and passes them on; returns whether. Throws
  /// the sink's problems on all ranks. Collective over the world.
  bool after(std::int64_t step);

 private:
  bool due(std::int64_t step) const { return step % every_ == 0; }
  void add_ranks(std::vector<QuantizerLine>& lines);

  Engine& engine_;
  Mesh& mesh_;
  Control& control_;
  std::int64_t every_;
  QuantizerStatistics measured_;
  StatisticsSink sink_;
};

}  // namespace tessera
