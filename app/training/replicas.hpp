#pragma once
#include "core/comm/control.hpp"
#include "core/params/param_sync.hpp"
#include "core/step/step_plan.hpp"

namespace tessera {

/// debug.replica_hash_every: all ranks of a bucket's process group hold the same bytes of its stored weights.
class ReplicaCheck {
 public:
  ReplicaCheck(Device& device, const StepPlan& plan);

  /// Throws on all ranks what differs. Collective.
  void compare(Stream& stream, ParamSync& sync, Control& control, std::int64_t step);
  /// Names buckets and ranks that differ from the first rank of their group (Exit::internal). Collective.
  Problems differences(Stream& stream, ParamSync& sync, Control& control, std::int64_t step);

 private:
  Device& device_;
  const StepPlan& plan_;
  Tensor sums_;  ///< u64, one a bucket
};

}  // namespace tessera
