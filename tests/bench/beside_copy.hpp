#pragma once
#include <chrono>
#include <map>

#include "kernels/base/runtime.hpp"
#include "kernels/convert/convert.hpp"
#include "tests/bench/timing.hpp"

/// Timing of kernels that only move memory: many calls between two waits of the host, beside the bandwidth of a copy.
namespace tessera::bench {

/// Elements to work on: far more than fit the caches of a host or a GPU.
inline std::int64_t total_elements() { return std::int64_t{1} << (Runtime::back_end() == "Cuda" ? 28 : 24); }

/// Calls between two waits of the host: enough that a GPU's queue stays full and a wait does not matter.
inline int batch() { return Runtime::back_end() == "Cuda" ? 100 : 1; }

/// Waits for the device; on the host work has ended when its call returns.
class Fence {
 public:
  explicit Fence(Device& device) : device_(device), flag_(device.allocate(Category::batch, DType::u8, {1})) {}
  void operator()() {
    std::uint8_t end;
    device_.download(device_.compute(), &end, flag_);
  }

 private:
  Device& device_;
  Tensor flag_;
};

/// Warms up: runs op() until times are steady, since a GPU that has been idle, or that clears freed memory, is up to a
/// tenth slower for a while.
template <class Op>
void warm_up(Fence& fence, const Op& op) {
  const std::chrono::milliseconds enough(Runtime::back_end() == "Cuda" ? 300 : 0);
  const auto begin = std::chrono::steady_clock::now();
  do {
    for (int i = 0; i < batch(); ++i) op();
    fence();
  } while (std::chrono::steady_clock::now() - begin < enough);
}

/// Bandwidth of copy() in bytes/s, reads and writes counted.
inline double copy_rate(std::int64_t bytes) {
  static std::map<std::int64_t, double> measured;
  if (const auto found = measured.find(bytes); found != measured.end()) return found->second;
  Device device;
  Fence fence(device);
  const Tensor from = device.allocate(Category::batch, DType::u8, {bytes});
  const Tensor to = device.allocate(Category::batch, DType::u8, from.shape);
  clear(device.compute(), from);
  warm_up(fence, [&] { copy(device.compute(), to, from); });
  double best = 1e30;
  for (int i = 0; i < 20; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    for (int k = 0; k < batch(); ++k) copy(device.compute(), to, from);
    fence();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / batch());
  }
  return measured[bytes] = 2.0 * static_cast<double>(bytes) / best;
}

/// Fills a tensor of T with random values; long ones repeat, since drawing on the host is slow.
template <class T>
void draw(Device& device, const Tensor& t) {
  constexpr std::int64_t most = std::int64_t{1} << 22;
  static const std::vector<T> drawn = test::uniform<T>(most, 1);
  for (std::int64_t at = 0; at < t.elements(); at += most)
    device.upload(device.compute(), t.flat(at, std::min(most, t.elements() - at)), drawn.data());
}

/// Times op(), `elements` at a time.
template <class Op>
void time_calls(benchmark::State& state, Bench& b, std::int64_t elements, const Op& op) {
  Fence fence(b.device());
  warm_up(fence, op);
  while (state.KeepRunningBatch(batch())) {
    for (int i = 0; i < batch(); ++i) op();
    fence();
  }
  state.counters["elements/s"] =
      benchmark::Counter(static_cast<double>(elements), benchmark::Counter::kIsIterationInvariantRate);
}

/// The same, with the bytes that op() must move against the bandwidth of a copy of these elements as bf16.
template <class Op>
void run_beside_copy(benchmark::State& state, Bench& b, std::int64_t elements, double bytes, const Op& op) {
  const double copying = copy_rate(elements * 2);
  time_calls(state, b, elements, op);
  state.counters["B/s"] = benchmark::Counter(bytes, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["of copy"] = benchmark::Counter(bytes / copying, benchmark::Counter::kIsIterationInvariantRate);
}

}  // namespace tessera::bench
