#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "core/comm/control.hpp"
#include "core/plan/plan.hpp"
#include "core/step/engine.hpp"
#include "core/step/tensor_capture.hpp"
#include "io/metrics/tensor_file.hpp"

namespace tessera {

/// debug.tensors in a run: takes the named tensors of chosen steps, of which rank 0 writes a file each. One a rank.
class TensorDump {
 public:
  TensorDump(Device& device, const RunPlan& plan, Engine& engine, Control& control);

  /// Before a step is enqueued: has it show its tensors, if it is chosen. Local.
  void before(std::int64_t step);
  /// After it, if it was chosen: waits for the device, and writes the file; returns whether. Throws Error{environment},
  /// on all ranks, if it cannot be written. Collective over the world.
  bool after(std::int64_t step);

 private:
  void write(const std::string& name, std::optional<TensorFile>& file, Problems& problems);

  Device& device_;
  const RunPlan& plan_;
  Engine& engine_;
  Control& control_;
  TensorCapture capture_;
};

}  // namespace tessera
