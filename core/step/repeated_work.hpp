#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "core/device/device.hpp"

namespace tessera {

/// Captures a step as a CUDA graph and replays it while the host state is unchanged, with the same bits. The first two
/// runs are eager, so that libraries have their plans and memory; the capture happens in the state that the first run
/// began in. A replay also calls the work with the streams of compute and copies dry, so that state machines,
/// counters and the log of collectives end as after an eager run. In any other state, and on the host, runs are eager.
class RepeatedWork {
 public:
  /// Everything on the host that decides what the work does.
  using State = std::vector<std::uint8_t>;

  explicit RepeatedWork(Device& device) : device_(device) {}

  /// `work` launches on the compute stream, and on other streams between events of it; its addresses and arguments are
  /// the same every time, and it waits for nothing. Only enqueues, but waits for the device before the capture. Local.
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
