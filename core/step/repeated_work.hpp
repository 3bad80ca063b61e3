#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "core/comm/mesh.hpp"
#include "core/device/device.hpp"

namespace tessera {

/// Captures a step as a CUDA graph and replays it while the host state is unchanged, with the same bits. The first two
/// runs are eager, so that libraries make their plans and allocate. Capture and replay happen only in the host state in
/// which the first run began. In any other state, and on the host, runs are eager. A replay runs no host code of the
/// work: the mesh logs its collectives again, and what else the work changes on the host is set.
class RepeatedWork {
 public:
  /// Everything on the host that decides what the work does.
  using State = std::vector<std::uint8_t>;

  RepeatedWork(Device& device, Mesh& mesh) : device_(device), mesh_(mesh) {}

  /// Runs `work`, or replays its graph and calls `replayed`, which must leave the host's state as `work` would. `work`
  /// launches on the compute stream, and on other streams between events of it. It must use the same addresses and
  /// arguments every time and must not wait. Only enqueues, but waits for the device before a capture. Local, if `work`
  /// is.
  void run(const State& state, const std::function<void()>& work, const std::function<void()>& replayed);

  std::int64_t replays() const { return replays_; }

 private:
  static constexpr int runs_before = 2;

  void launch();

  Device& device_;
  Mesh& mesh_;
  State recorded_from_;
  Graph graph_;
  int runs_ = 0;
  std::int64_t replays_ = 0;
};

}  // namespace tessera
