#pragma once
#include <chrono>
#include <cstdint>
#include <thread>

#include "core/comm/wrapper.hpp"
#include "kernels/base/error.hpp"

namespace tessera::test {

/// Fault injection: sleeps a random time of at most `most_us` before each submit, drawn from `seed` and the rank.
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

inline std::unique_ptr<Communicator> delaying(std::unique_ptr<Communicator> inner, std::uint64_t seed, int most_us) {
  return std::make_unique<Delaying>(std::move(inner), seed, most_us);
}

}  // namespace tessera::test
