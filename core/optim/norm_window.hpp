#pragma once
#include <cstdint>
#include <vector>

namespace tessera {

/// Spike detection: a step is a spike if the z-score of its gradient norm over a window of 128 steps is too large, as
/// in llm.c (llmc/outlier_detector.h). The window leaves out the step just before, whose norm may still be on the
/// device when this step is enqueued. So the decision does not depend on timing. The same on every rank. Local.
class NormWindow {
 public:
  static constexpr std::size_t length = 128;

  /// Resumes after step `newest`, from the norms() that were saved then; empty: starts anew.
  void resume(std::vector<double> norms, std::int64_t newest);
  /// Adds the norm of step newest() + 1. NaN and infinity count as no norm.
  void add(float norm);
  std::int64_t newest() const { return newest_; }

  /// The norm above which step `step` is skipped: mean + deviations * standard deviation of the norms of steps
  /// [step - 129, step - 2]. Infinity until the window is full. `step` is newest() + 1 or newest() + 2.
  float limit(std::int64_t step, double deviations) const;
  /// The norms to save for resume(), the newest last; -1 for a step without a norm.
  const std::vector<double>& norms() const { return norms_; }

 private:
  std::vector<double> norms_;  // at most length + 1
  std::int64_t newest_ = 0;
};

}  // namespace tessera
