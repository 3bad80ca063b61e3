#pragma once
#include <chrono>

#include "core/plan/plan.hpp"
#include "io/metrics/metrics_log.hpp"

namespace tessera {

/// Rank 0's log of a run: every step to metrics.jsonl, and to the console as many as a person can follow.
class RunLog {
 public:
  /// Throws Error{environment} when metrics.jsonl cannot be opened.
  /// `step`: steps done before, whose rows stay.
  RunLog(const RunPlan& plan, std::int64_t step);

  [[nodiscard]] Problems row(const MetricsRow& row);
  double seconds() const;  ///< since it was opened

 private:
  using Clock = std::chrono::steady_clock;
  bool worth_a_line(const MetricsRow& row) const;

  const RunPlan& plan_;
  std::int64_t begun_at_;
  MetricsLog metrics_;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point printed_;
  std::int64_t memory_ = 0;
};

}  // namespace tessera
