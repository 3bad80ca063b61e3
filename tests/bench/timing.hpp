#pragma once
#include <benchmark/benchmark.h>

#include <cstdint>
#include <vector>

#include "core/device/device.hpp"
#include "tests/support/on_device.hpp"

namespace tessera::bench {

/// Minimum work of one call; the report shows the rates of those that are not zero.
struct Work {
  double flops = 0;
  double bytes = 0;  ///< read and written once each
};

/// Wall time in microseconds, since several threads or a device do the work.
inline void timed(benchmark::internal::Benchmark* b) { b->Unit(benchmark::kMicrosecond)->UseRealTime(); }

/// A device, tensors of random values on it, and the timed loop.
class Bench {
 public:
  explicit Bench(benchmark::State& state) : state_(state), flag_(device_.allocate(Category::batch, DType::u8, {1})) {}

  Stream& stream() { return device_.compute(); }
  Device& device() { return device_; }
  Arena& arena() { return arena_; }

  template <class T> Tensor random(Shape shape, double low = -1, double high = 1) {
    return test::on_device(device_, shape, test::uniform<T>(shape.elements(), ++seed_, low, high));
  }
  /// i32 in [0, limit).
  Tensor indices(Shape shape, std::int32_t limit) {
    std::vector<std::int32_t> values;
    for (double x : test::uniform<double>(shape.elements(), ++seed_, 0, limit))
      values.push_back(static_cast<std::int32_t>(x));
    return test::on_device(device_, shape, values);
  }
  template <class T> Tensor empty(Shape shape) { return test::poisoned<T>(device_, shape); }

  /// Times op() until its end on the device.
  template <class Op> void run(const Work& work, const Op& op) {
    op();
    for (auto _ : state_) {
      op();
      std::uint8_t end;
      device_.download(stream(), &end, flag_);
    }
    const auto rate = [](double x) { return benchmark::Counter(x, benchmark::Counter::kIsIterationInvariantRate); };
    if (work.flops > 0) state_.counters["FLOP/s"] = rate(work.flops);
    if (work.bytes > 0) state_.counters["B/s"] = rate(work.bytes);
  }

 private:
  benchmark::State& state_;
  Device device_;
  Tensor flag_;
  Arena arena_ = device_.arena(Category::activations, std::int64_t{320} << 20);
  std::uint64_t seed_ = 0;
};

}  // namespace tessera::bench
