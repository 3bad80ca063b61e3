#pragma once
#include "core/comm/control.hpp"
#include "core/params/param_sync.hpp"
#include "core/step/step_plan.hpp"

namespace tessera {

/// debug.replica_hash_every: checks that all ranks of a process group hold the same bytes of stored weights, by
/// digests.
class ReplicaCheck {
 public:
  ReplicaCheck(Device& device, const StepPlan& plan);

  /// Throws differences(), if there are any, on all ranks. Collective over the world.
  void compare(Stream& stream, ParamSync& sync, Control& control, std::int64_t step);
  /// Problems (Exit::internal) that name the buckets and ranks that differ from the first rank of their group.
  /// Collective over the world.
  Problems differences(Stream& stream, ParamSync& sync, Control& control, std::int64_t step);

 private:
  Device& device_;
  const StepPlan& plan_;
  Tensor sums_;  ///< u64, one a bucket
};

}  // namespace tessera
