#pragma once
#include <sched.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <chrono>
#include <thread>

#include "core/comm/wrapper.hpp"
#include "kernels/base/error.hpp"

namespace tessera::test {

/// Wrapper that simulates a slow network: operations go one at a time, each taking at least latency + bytes/bandwidth.
class Throttled final : public Wrapper {
 public:
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;

  Throttled(std::unique_ptr<Communicator> inner, double latency_us, double bytes_per_second)
      : Wrapper("throttled", std::move(inner)), latency_(latency_us * 1e-6), bytes_per_second_(bytes_per_second) {
    require(latency_us >= 0 && bytes_per_second > 0, "throttled", "takes a latency >= 0 and a bandwidth > 0");
  }

  bool on_streams() const override { return false; }  // the host waits until an operation is due

  Pending submit(Stream& stream, const Operation& operation) override {
    std::size_t slot = 0;
    while (slot < slots_.size() && used_[slot]) ++slot;
    require(slot < slots_.size(), "throttled", "too many collectives under way");
    slots_[slot].inner = inner().submit(stream, operation);
    const Seconds transfer(latency_ + static_cast<double>(operation.bytes(rank(), size())) / bytes_per_second_);
    link_free_ = std::max(Clock::now(), link_free_) + std::chrono::duration_cast<Clock::duration>(transfer);
    slots_[slot].due = link_free_;
    used_[slot] = true;
    return Pending(this, static_cast<int>(slot));
  }

 protected:
  void finish(Stream& stream, int slot) override {
    auto& [pending, due] = slots_[static_cast<std::size_t>(slot)];
    pending.wait(stream);
    for (; Clock::now() < due; sched_yield()) stream.progress();
    used_[static_cast<std::size_t>(slot)] = false;
  }
  void abandon(int slot) noexcept override {
    auto& [pending, due] = slots_[static_cast<std::size_t>(slot)];
    pending = Pending();
    std::this_thread::sleep_until(due);
    used_[static_cast<std::size_t>(slot)] = false;
  }

 private:
  struct Slot {
    Pending inner;
    Clock::time_point due;
  };
  double latency_, bytes_per_second_;
  Clock::time_point link_free_{};
  std::array<Slot, 64> slots_;
  std::bitset<64> used_;
};

inline std::unique_ptr<Communicator> throttled(std::unique_ptr<Communicator> inner, double latency_us,
                                               double bytes_per_second) {
  return std::make_unique<Throttled>(std::move(inner), latency_us, bytes_per_second);
}

}  // namespace tessera::test
