#pragma once
#include <cstdint>
#include <vector>

namespace tessera {

/// The gradient norms by which a step is told to be a spike: its z-score over a window of 128 steps, as llm.c has it
/// (llmc/outlier_detector.h). The step just before is left out, since its norm may still be on the device when this one
/// is enqueued: what is skipped depends on no timing. The same on every rank. All Local.
class NormWindow {
 public:
  static constexpr std::size_t length = 128;

  /// Resumes after step `newest`, from norms() that were saved then; empty: from none.
  void resume(std::vector<double> norms, std::int64_t newest);
  /// The norm of step newest() + 1; NaN or infinity: it has none.
  void add(float norm);
  std::int64_t newest() const { return newest_; }

  /// mean + deviations * standard deviation of the norms of steps [step - 129, step - 2]: step `step` is skipped above
  /// it. Infinity until there are as many. `step` is newest() + 1 or newest() + 2.
  float limit(std::int64_t step, double deviations) const;
  /// What resume() takes, the newest last; -1 for a step without a norm.
  const std::vector<double>& norms() const { return norms_; }

 private:
  std::vector<double> norms_;  // at most length + 1
  std::int64_t newest_ = 0;
};

}  // namespace tessera
