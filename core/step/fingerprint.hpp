#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "core/step/step_plan.hpp"
#include "kernels/base/stream.hpp"

namespace tessera {

/// Adds digests of this rank's shards (of gradients, or of masters) to `sums`: u64, one a canonical dataset, on the
/// device. Shards add up to the digest of the whole tensor, whatever ranks hold them.
void add_digests(Stream& stream, std::uint64_t* sums, const StepPlan& plan,
                 const std::function<Tensor(BucketId)>& shard);

/// What one computation of a step's gradients gave, to be compared with another of the same step from the same state.
struct StepFingerprint {
  std::vector<std::int64_t> sums;       ///< words of all ranks' StepSums, by rank and round; the same on all ranks
  std::vector<std::uint64_t> gradients;  ///< digests of this rank's shards, by dataset
};

/// Judges a step that was computed twice because it would be skipped: throws on all ranks if the two differ. Collective
/// over the world.
using Judge = std::function<void(std::int64_t step, const StepFingerprint& first, const StepFingerprint& second)>;

}  // namespace tessera
