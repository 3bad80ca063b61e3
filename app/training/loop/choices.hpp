#pragma once
#include <filesystem>
#include <span>
#include <vector>

#include "core/comm/control.hpp"
#include "core/data/sampler.hpp"
#include "core/plan/plan.hpp"
#include "core/step/step_memory.hpp"
#include "io/metrics/choices_file.hpp"

namespace tessera {

/// Writes this rank's choices of experts of each step to routing.record. One a rank. Local.
class RecordedChoices {
 public:
  /// Opens a record that is there. Throws as ChoicesFile does.
  RecordedChoices(const std::filesystem::path& path, const RunPlan& plan);

  [[nodiscard]] Problems write(std::int64_t step, const StepReport& report);

 private:
  ChoicesFile file_;
  BatchPlan batch_;
  std::int64_t rank_;
};

/// Reads the choices of experts of each step from routing.replay. One a rank.
class ReplayedChoices {
 public:
  /// Opens a record. Throws as ChoicesFile does. Local.
  explicit ReplayedChoices(const std::filesystem::path& path) : file_(path, ChoicesFile::Mode::read) {}

  /// Fills batch.given for the micro-batches of `pieces`, which the batch holds. Throws Error{file} on all ranks if any
  /// cannot read its part. Collective over the world.
  void give(HostSequences& batch, std::span<const SampleRange> pieces, std::int64_t step, Control& control) const;

 private:
  ChoicesFile file_;
};

}  // namespace tessera
