#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "core/device/device.hpp"

namespace tessera {

/// Work that does the same on the device whenever it begins in the same state of the host. On a GPU it runs twice as it
/// is, so that libraries have their plans and memory; then, in the state that its first run began in, it is recorded
/// once and from there on replayed as one graph, with the same bits. A replay walks through the work too, with the
/// compute stream dry: state machines, counters and the log of collectives end as after the work itself. In any other
/// state, and on the host, it runs as it is.
class RepeatedWork {
 public:
  /// All on the host that decides what the work does.
  using State = std::vector<std::uint8_t>;

  explicit RepeatedWork(Device& device) : device_(device) {}

  /// `work` launches on the compute stream, and on others between events of that; its addresses and arguments are the
  /// same every time, and it waits for nothing. Only enqueues; before it is recorded, waits for what was enqueued.
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
