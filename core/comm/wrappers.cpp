#include <sched.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <chrono>
#include <thread>

#include "core/comm/communicator.hpp"
#include "kernels/base/error.hpp"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

/// Hands out the inner communicator's Pending; whoever needs its own overrides finish and abandon too.
class Wrapper : public Communicator {
 public:
  Wrapper(const char* kind, std::unique_ptr<Communicator> inner) : kind_(kind), inner_(std::move(inner)) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string name() const override { return std::string(kind_) + "(" + inner_->name() + ")"; }
  const CollectiveLog* log() const override { return inner_->log(); }
  double busy() const override { return inner_->busy(); }
  bool on_streams() const override { return inner_->on_streams(); }

 protected:
  Communicator& inner() { return *inner_; }
  void finish(Stream&, int) override {}
  void abandon(int) noexcept override {}

 private:
  const char* kind_;
  std::unique_ptr<Communicator> inner_;
};

class Recording final : public Wrapper {
 public:
  Recording(std::unique_ptr<Communicator> inner, std::vector<Record>& records)
      : Wrapper("recording", std::move(inner)), records_(records) {}

  Pending submit(Stream& stream, const Operation& operation) override {
    Pending pending = inner().submit(stream, operation);
    records_.push_back(
        {operation.collective, operation.group, std::ssize(operation.exchanges), operation.bytes(rank(), size())});
    return pending;
  }

 private:
  std::vector<Record>& records_;
};

class Throttled final : public Wrapper {
 public:
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

class Delaying final : public Wrapper {
 public:
  Delaying(std::unique_ptr<Communicator> inner, std::uint64_t seed, int most_us)
      : Wrapper("delaying", std::move(inner)),
        state_(seed + static_cast<std::uint64_t>(rank()) * 0xD1B54A32D192ED03u),
        most_us_(most_us) {
    require(most_us >= 0, "delaying", "takes a time >= 0");
  }

  Pending submit(Stream& stream, const Operation& operation) override {
    std::this_thread::sleep_for(std::chrono::microseconds(next() % (static_cast<std::uint64_t>(most_us_) + 1)));
    return inner().submit(stream, operation);
  }

 private:
  /// SplitMix64 (Steele, Lea, Flood 2014).
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  std::uint64_t state_;
  int most_us_;
};

}  // namespace

std::unique_ptr<Communicator> recording(std::unique_ptr<Communicator> inner, std::vector<Record>& records) {
  return std::make_unique<Recording>(std::move(inner), records);
}
std::unique_ptr<Communicator> throttled(std::unique_ptr<Communicator> inner, double latency_us,
                                        double bytes_per_second) {
  return std::make_unique<Throttled>(std::move(inner), latency_us, bytes_per_second);
}
std::unique_ptr<Communicator> delaying(std::unique_ptr<Communicator> inner, std::uint64_t seed, int most_us) {
  return std::make_unique<Delaying>(std::move(inner), seed, most_us);
}

}  // namespace tessera
