#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "core/params/access.hpp"
#include "core/step/step_plan.hpp"
#include "kernels/base/stream.hpp"

namespace tessera {

/// Adds digests of this rank's shards (of gradients, or of masters) to `sums`: u64, one a canonical dataset, on the
/// device. Shards add up to the digest of the whole tensor, whatever ranks hold them.
void add_digests(Stream& stream, std::uint64_t* sums, const StepPlan& plan,
                 const std::function<Tensor(BucketId)>& shard);

/// Passes the gradients of one micro-batch on, and adds the digest of each to `sums` when all of it is written. `sums`:
/// u64, one a canonical dataset, on the device. The gradients of no other micro-batch may be in them.
class DigestingSink final : public GradientSink {
 public:
  DigestingSink(const StepPlan& plan, std::uint64_t* sums, GradientSink& sink);
  Gradient slot(ParamId param) override { return given_[param] = sink_.slot(param); }
  void written(Stream& stream, ParamId param) override;

 private:
  std::vector<int> dataset_of_;
  std::uint64_t* sums_;
  GradientSink& sink_;
  IndexedBy<ParamId, Gradient> given_;
  IndexedBy<ParamId, int> unwritten_;  ///< contributions to come
};

/// What one computation of a step's gradients gave, to be compared with another of the same step from the same state.
struct StepFingerprint {
  std::vector<std::int64_t> sums;        ///< words of all ranks' StepSums, by rank and round; the same on all ranks
  std::vector<std::uint64_t> gradients;  ///< digests of this rank's shards, by dataset
};

/// Judges a step that was computed twice because it would be skipped: throws on all ranks if the two differ. Collective
/// over the world.
using Judge = std::function<void(std::int64_t step, const StepFingerprint& first, const StepFingerprint& second)>;

/// Computations of each rank's first micro-batch in a spot check, from 0. The step's own, by another rank, and a last
/// one, made only where the first two differ. In computation `number` a rank computes the micro-batch of rank
/// Ranks::further_on(number): its own again where there is one rank, or one expert group.
inline constexpr int spot_computations = 3;

/// Judges a step's spot check by this rank's fingerprints (sums: those of the micro-batch; gradients: whole). Makes the
/// last computation, and throws on all ranks, if two computations of any micro-batch differ. Collective over the world.
using SpotJudge = std::function<void(std::int64_t step, const StepFingerprint& first, const StepFingerprint& second,
                                     const std::function<StepFingerprint()>& last)>;

}  // namespace tessera
