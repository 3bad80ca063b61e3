#pragma once
#include <functional>

#include "core/comm/mesh.hpp"
#include "core/params/param_sync.hpp"
#include "core/state/state_dict.hpp"
#include "core/step/step_plan.hpp"

namespace tessera {

/// A planned model on a device: its masters, the weights made from them, and memory for a pass. Engine and Decoder are
/// built on one.
class BuiltModel {
 public:
  /// Throws Error{internal} unless `mesh` connects the ranks that were planned for. Allocates. Local.
  BuiltModel(Device& device, const StepPlan& plan, Mesh& mesh);

  /// The masters as named tensors, whose digests a loader writes to `digests`. Local.
  StateDict state(const Tensor& digests) const;
  /// Draws the initial masters, then calls `fill` to overwrite any of them; passes exceptions of `fill` on. Collective
  /// over the world.
  Updated initialise(const Tensor& digests, const std::function<void(StateDict&)>& fill);

  Masters masters;
  ParamSync sync;
  SharedMemory reached;  ///< that of `activations`, where ranks move rows in each other's; else empty
  Arena activations;

 private:
  Stream& stream_;
  const StepPlan& plan_;
};

}  // namespace tessera
