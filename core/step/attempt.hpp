#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "core/params/tokens.hpp"
#include "core/step/step_plan.hpp"

namespace tessera {

/// What one computation of a step's gradients gave, to be compared with another of the same step from the same state.
struct Attempt {
  std::vector<std::int64_t> sums;       ///< words of all ranks' StepSums, by rank and round; the same on all ranks
  std::vector<std::uint64_t> gradients;  ///< digests of this rank's shards, by dataset
};

/// Adds the digests of this rank's gradient shards to `sums` (u64 [datasets], on the device).
void add_digests(Stream& stream, const Tensor& sums, const StepPlan& plan, const Reduced& gradients);

/// Judges a step that was computed twice because it would be skipped: throws on all ranks if the attempts differ.
/// Collective over the world.
using Judge = std::function<void(std::int64_t step, const Attempt& first, const Attempt& second)>;

}  // namespace tessera
