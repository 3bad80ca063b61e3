#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "core/device/device.hpp"

namespace tessera {

/// Captures a step as a CUDA graph and replays it while the host state is unchanged, with the same bits. The first two
/// runs are eager, so that libraries make their plans and allocate. Capture and replay happen only in the host state in
/// which the first run began; in any other state, and on the host, runs are eager. A replay also calls the work with
/// dry streams of compute and copies, so that state machines, counters and the log of collectives end as after an eager
/// run.
class RepeatedWork {
 public:
  /// Everything on the host that decides what the work does.
  using State = std::vector<std::uint8_t>;

  explicit RepeatedWork(Device& device) : device_(device) {}

  /// Runs `work`, or its graph. `work` launches on the compute stream, and on other streams between events of it; it
  /// must use the same addresses and arguments every time and must not wait. Only enqueues, but waits for the device
  /// before a capture. Local, if `work` is.
  void run(const State& state, const std::function<void()>& work);

  std::int64_t replays() const { return replays_; }

 private:
  static constexpr int runs_before = 2;

  Device& device_;
  State recorded_from_;
  Graph graph_;
  int runs_ = 0;
  std::int64_t replays_ = 0;
};

}  // namespace tessera
