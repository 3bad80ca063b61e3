// Matrix products and attention in the shapes of a small model: 8 sequences of 256 tokens, 256 wide, 4 heads.
#include <benchmark/benchmark.h>

#include <random>
#include <vector>

#include "core/device/device.hpp"
#include "kernels/attention/attention.hpp"
#include "kernels/base/runtime.hpp"
#include "kernels/gemm/gemm.hpp"

namespace tessera {
namespace {

constexpr std::int64_t rows = 2048;

/// Random data: zeros would draw less power, and denormals more time.
template <class T>
Tensor random(Device& device, Shape shape) {
  std::mt19937 bits(1);
  std::vector<T> values(static_cast<std::size_t>(shape.elements()));
  for (T& v : values) v = T(static_cast<float>(bits()) * 0x1p-31f - 1);
  const Tensor t = device.allocate(Category::activations, dtype_of<T>, shape);
  device.upload(device.compute(), t, values.data());
  return t;
}

/// Runs `work` and reports the rate of `flops` a run.
template <class F>
void measure(benchmark::State& state, Device& device, double flops, const F& work) {
  const Tensor last = device.allocate(Category::activations, DType::u8, {1});
  std::uint8_t byte = 0;
  const auto wait = [&] { device.download(device.compute(), &byte, last); };  // a download waits for what went before
  work();
  wait();
  for (auto _ : state) {
    work();
    wait();
  }
  state.counters["GFLOP/s"] =
      benchmark::Counter(flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate, benchmark::Counter::kIs1000);
}

template <class T>
struct Layer {
  Device device;
  Stream& stream = device.compute();
  std::int64_t out, in;
  Tensor x = random<T>(device, {rows, in}), dx = random<T>(device, {rows, in});
  Tensor y = random<T>(device, {rows, out}), pre = random<T>(device, {rows, out});
  Tensor bias = random<T>(device, {out});
  Operand w{random<T>(device, {out, in})};
  Gradient dw{random<Accumulator<T>>(device, {out, in}), 1}, db{random<Accumulator<T>>(device, {out}), 1};

  explicit Layer(const benchmark::State& state) : out(state.range(0)), in(state.range(1)) {}
  double flops() const { return 2.0 * static_cast<double>(rows * out * in); }
};

template <class T>
void forward(benchmark::State& state) {
  Layer<T> l(state);
  measure(state, l.device, l.flops(), [&] { linear_forward(l.stream, l.y, l.x, l.w, l.bias); });
}
template <class T>
void forward_gelu(benchmark::State& state) {
  Layer<T> l(state);
  measure(state, l.device, l.flops(), [&] { linear_gelu_forward(l.stream, l.y, l.pre, l.x, l.w, l.bias); });
}
template <class T>
void input_gradient(benchmark::State& state) {
  Layer<T> l(state);
  measure(state, l.device, l.flops(), [&] { linear_input_gradient(l.stream, l.dx, l.y, l.w); });
}
template <class T>
void weight_gradient(benchmark::State& state) {
  Layer<T> l(state);
  measure(state, l.device, l.flops(), [&] { linear_weight_gradient(l.stream, l.dw, l.y, l.x); });
}
template <class T>
void column_sums(benchmark::State& state) {
  Layer<T> l(state);
  measure(state, l.device, static_cast<double>(rows * l.out), [&] { bias_gradient(l.stream, l.db, l.y); });
}

template <class T>
struct Heads {
  static constexpr AttentionShape shape{8, 256, 4, 4, 64};
  Device device;
  Stream& stream = device.compute();
  Arena arena = device.arena(Category::activations, std::int64_t{64} << 20);
  Tensor qkv = random<T>(device, {rows, shape.columns()}), dqkv = random<T>(device, {rows, shape.columns()});
  Tensor out = random<T>(device, {rows, 256}), dout = random<T>(device, {rows, 256});
  Tensor lse = random<Accumulator<T>>(device, {8, 4, 256});

  Heads() { attention_forward(stream, arena, shape, out, lse, qkv); }
  static double flops(int products) { return products * 2.0 * 64 * 8 * 4 * 256 * 257 / 2; }
};

template <class T>
void attend(benchmark::State& state) {
  Heads<T> h;
  measure(state, h.device, h.flops(2), [&] { attention_forward(h.stream, h.arena, h.shape, h.out, h.lse, h.qkv); });
}
template <class T>
void attend_backward(benchmark::State& state) {
  Heads<T> h;
  measure(state, h.device, h.flops(5),
          [&] { attention_backward(h.stream, h.arena, h.shape, h.dqkv, h.dout, h.qkv, h.out, h.lse); });
}

void shapes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"out", "in"})->Args({768, 256})->Args({1024, 256})->Args({256, 256})->Args({256, 1024});
  b->Unit(benchmark::kMicrosecond);
}

BENCHMARK(forward<bf16>)->Apply(shapes);
BENCHMARK(forward<float>)->Apply(shapes);
BENCHMARK(forward_gelu<bf16>)->Apply(shapes);
BENCHMARK(forward_gelu<float>)->Apply(shapes);
BENCHMARK(input_gradient<bf16>)->Apply(shapes);
BENCHMARK(input_gradient<float>)->Apply(shapes);
BENCHMARK(weight_gradient<bf16>)->Apply(shapes);
BENCHMARK(weight_gradient<float>)->Apply(shapes);
BENCHMARK(column_sums<bf16>)->Apply(shapes);
BENCHMARK(column_sums<float>)->Apply(shapes);
BENCHMARK(attend<bf16>)->Unit(benchmark::kMicrosecond);
BENCHMARK(attend<float>)->Unit(benchmark::kMicrosecond);
BENCHMARK(attend_backward<bf16>)->Unit(benchmark::kMicrosecond);
BENCHMARK(attend_backward<float>)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  const tessera::Runtime runtime;
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
