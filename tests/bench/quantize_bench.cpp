// Quantization, as weights and as shards, beside the copy bandwidth of the same run and the serial reference.
#include "kernels/quantize/quantize.hpp"

#include <chrono>

#include "kernels/base/runtime.hpp"
#include "kernels/convert/convert.hpp"
#include "kernels/reference/quantize.hpp"
#include "tests/bench/timing.hpp"
#include "tests/support/quantized.hpp"

namespace tessera::bench {
namespace {

using formats::Format;
using formats::Matrix;

constexpr Matrix cached{512, 512};  // what the reference is timed on, and the kernels beside it

/// Elements of every table: far beyond the caches of a host, or of a GPU.
std::int64_t total_elements() { return std::int64_t{1} << (Runtime::back_end() == "Cuda" ? 28 : 24); }

/// `tensors` equal matrices of that many elements, twice as wide as high.
Matrix shape_of(std::int64_t tensors) {
  std::int64_t rows = 32;
  while (rows * rows * 8 * tensors <= total_elements()) rows *= 2;
  return {rows, total_elements() / tensors / rows / 128 * 128};
}

/// Calls between two waits of the host: a GPU's queue must not run dry.
int batch() { return Runtime::back_end() == "Cuda" ? 20 : 1; }

/// Waits for the device; the host's work has ended with its call.
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

/// Bytes per second that copy() moves, read and written counted.
double copy_rate() {
  static const double rate = [] {
    Device device;
    Fence fence(device);
    const Tensor from = device.allocate(Category::batch, DType::u8, {total_elements() * 2});
    const Tensor to = device.allocate(Category::batch, DType::u8, from.shape);
    clear(device.compute(), from);
    copy(device.compute(), to, from);
    fence();
    double best = 1e30;
    for (int i = 0; i < 20; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      for (int k = 0; k < batch(); ++k) copy(device.compute(), to, from);
      fence();
      best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / batch());
    }
    return 2.0 * static_cast<double>(from.bytes()) / best;
  }();
  return rate;
}

/// Random values on the device. A long tensor repeats itself, since the host is slow to draw.
template <class T>
Tensor values_of(Device& device, std::int64_t n) {
  constexpr std::int64_t most = std::int64_t{1} << 22;
  static const std::vector<T> drawn = test::uniform<T>(most, 1);
  const Tensor t = device.allocate(Category::weights, dtype_of<T>, {n});
  for (std::int64_t at = 0; at < n; at += most)
    device.upload(device.compute(), t.flat(at, std::min(most, n - at)), drawn.data());
  return t;
}

double bytes_of(const Tensor& t) { return t ? static_cast<double>(t.bytes()) : 0.0; }

/// Matrices of one format with both copies, whose values are random bf16, or fp32 masters.
template <Format F>
struct Weights {
  Weights(Bench& b, std::int64_t tensors, DType type) : Weights(b, tensors, type, shape_of(tensors)) {}
  Weights(Bench& b, std::int64_t tensors, DType type, Matrix each) : matrix(each) {
    for (std::int64_t i = 0; i < tensors; ++i) {
      const auto buffer = [&](DType t, Shape shape) { return b.device().allocate(Category::weights, t, shape); };
      QuantizedMatrix m;
      m.matrix = matrix;
      m.values = type == DType::bf16 ? values_of<bf16>(b.device(), matrix.elements())
                                     : values_of<float>(b.device(), matrix.elements());
      for (Side side : {Side::rowwise, Side::columnwise}) {
        Copy& copy = side == Side::rowwise ? m.rowwise : m.columnwise;
        const bool shares = side == Side::columnwise && F::columnwise == formats::Columnwise::shared;
        copy.data = shares ? m.rowwise.data
                           : buffer(dtype_of<typename F::Element::Storage>, formats::data_shape<F>(side, matrix));
        if (F::scaled) copy.scales = buffer(dtype_of<typename F::Scale>, formats::scale_shape<F>(side, matrix));
        if (F::tensor_amax) copy.amax = buffer(DType::f32, {1});
        if (formats::swizzles<F>()) copy.swizzled = buffer(DType::u8, formats::scale_shape<F>(side, matrix));
      }
      values += bytes_of(m.values);
      data[0] += bytes_of(m.rowwise.data);
      data[1] += m.columnwise.data.data == m.rowwise.data.data ? 0 : bytes_of(m.columnwise.data);
      scales[0] += bytes_of(m.rowwise.scales);
      scales[1] += bytes_of(m.columnwise.scales);
      matrices.push_back(m);
    }
  }
  Matrix matrix;
  std::vector<QuantizedMatrix> matrices;
  double values = 0, data[2] = {0, 0}, scales[2] = {0, 0};
};

/// Times op(), `elements` at a time.
template <class Op>
void time_calls(benchmark::State& state, Bench& b, std::int64_t elements, const Op& op) {
  Fence fence(b.device());
  op();
  fence();
  while (state.KeepRunningBatch(batch())) {
    for (int i = 0; i < batch(); ++i) op();
    fence();
  }
  state.counters["elements/s"] =
      benchmark::Counter(static_cast<double>(elements), benchmark::Counter::kIsIterationInvariantRate);
}

/// The same of a whole table, with the bytes that op() must move against the copy bandwidth.
template <class Op>
void run(benchmark::State& state, Bench& b, double bytes, const Op& op) {
  const double copying = copy_rate();
  time_calls(state, b, total_elements(), op);
  state.counters["B/s"] = benchmark::Counter(bytes, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["of copy"] = benchmark::Counter(bytes / copying, benchmark::Counter::kIsIterationInvariantRate);
}

template <class F, DType type>
void both_copies(benchmark::State& state) {
  Bench b(state);
  const Weights<F> w(b, state.range(0), type);
  const QuantizeTable table = test::placed(b.device(), formats::id_of<F>, w.matrices);
  // A scale of the whole tensor needs the values twice.
  const double read = w.values * (F::tensor_amax ? 2 : 1);
  run(state, b, read + w.data[0] + w.data[1] + w.scales[0] + w.scales[1], [&] { quantize(b.stream(), table); });
}

template <class F>
void gradients(benchmark::State& state) {
  Bench b(state);
  const Weights<F> w(b, state.range(0), DType::bf16);
  const QuantizeTable table = test::placed(b.device(), formats::id_of<F>, w.matrices);
  run(state, b, w.values * 2 + w.data[0] + w.data[1] + w.scales[0] + w.scales[1],
      [&] { quantize(b.stream(), table, Precision::bf16_first, Purpose::gradient); });
}

template <class F>
void shard_amaxes(benchmark::State& state) {
  Bench b(state);
  const Weights<F> w(b, state.range(0), DType::f32);
  const QuantizeTable table = test::placed(b.device(), formats::id_of<F>, w.matrices);
  const Tensor amaxes = b.empty<bf16>({table.amax_entries()});
  run(state, b, w.values + static_cast<double>(amaxes.bytes()), [&] { block_amax(b.stream(), table, amaxes); });
}

template <class F>
void shard_casts(benchmark::State& state) {
  Bench b(state);
  const Weights<F> w(b, state.range(0), DType::f32);
  const QuantizeTable table = test::placed(b.device(), formats::id_of<F>, w.matrices);
  const Tensor amaxes = b.empty<bf16>({table.amax_entries()});
  if constexpr (F::scaled) block_amax(b.stream(), table, amaxes);
  run(state, b, w.values + w.data[0] + w.scales[0] + static_cast<double>(amaxes.bytes()),
      [&] { partial_cast(b.stream(), table, amaxes); });
}

template <class F>
void derived_copies(benchmark::State& state) {
  Bench b(state);
  const Weights<F> w(b, state.range(0), DType::bf16);
  const QuantizeTable table = test::placed(b.device(), formats::id_of<F>, w.matrices);
  quantize(b.stream(), table);
  run(state, b, w.data[0] + w.data[1] + w.scales[0] + w.scales[1], [&] { build_columnwise(b.stream(), table); });
}

template <class F>
void decoded_operands(benchmark::State& state) {
  Bench b(state);
  const Weights<F> w(b, state.range(0), DType::bf16);
  const QuantizeTable table = test::placed(b.device(), formats::id_of<F>, w.matrices);
  quantize(b.stream(), table);
  run(state, b, w.values + w.data[0] + w.scales[0], [&] { decode_operands(b.stream(), table, Side::rowwise); });
}

template <class F>
void swizzled_scales(benchmark::State& state) {
  Bench b(state);
  const Weights<F> w(b, state.range(0), DType::bf16);
  const QuantizeTable table = test::placed(b.device(), formats::id_of<F>, w.matrices);
  quantize(b.stream(), table);
  run(state, b, 2 * (w.scales[0] + w.scales[1]), [&] { swizzle_scales(b.stream(), table); });
}

// ---- the serial oracle, which the host's kernels must leave ten times behind, and the same matrix by them

template <class Op>
void time_reference(benchmark::State& state, const Op& op) {
  for (auto _ : state) op();
  state.counters["elements/s"] =
      benchmark::Counter(static_cast<double>(cached.elements()), benchmark::Counter::kIsIterationInvariantRate);
}

template <class F>
void reference_copies(benchmark::State& state) {
  const auto x = test::uniform<float>(cached.elements(), 1);
  time_reference(state, [&] {
    for (Side side : {Side::rowwise, Side::columnwise})
      benchmark::DoNotOptimize(reference::quantize<F>(side, cached, x).data.data());
  });
}
template <class F>
void cached_copies(benchmark::State& state) {
  Bench b(state);
  const Weights<F> w(b, 1, DType::bf16, cached);
  const QuantizeTable table = test::placed(b.device(), formats::id_of<F>, w.matrices);
  time_calls(state, b, cached.elements(), [&] { quantize(b.stream(), table); });
}

template <class F>
void reference_cast(benchmark::State& state) {
  const auto x = test::uniform<float>(cached.elements(), 1);
  time_reference(state, [&] {
    benchmark::DoNotOptimize(reference::quantize<F>(Side::rowwise, cached, reference::rounded_to_bf16(x)).data.data());
  });
}
template <class F>
void cached_cast(benchmark::State& state) {
  Bench b(state);
  const Weights<F> w(b, 1, DType::f32, cached);
  const QuantizeTable table = test::placed(b.device(), formats::id_of<F>, w.matrices);
  const Tensor amaxes = b.empty<bf16>({table.amax_entries()});
  time_calls(state, b, cached.elements(), [&] {
    block_amax(b.stream(), table, amaxes);
    partial_cast(b.stream(), table, amaxes);
  });
}

template <class F>
void reference_columnwise(benchmark::State& state) {
  const auto copy = reference::quantize<F>(Side::rowwise, cached, test::uniform<float>(cached.elements(), 1));
  time_reference(state, [&] { benchmark::DoNotOptimize(reference::columnwise_of<F>(cached, copy).data.data()); });
}
template <class F>
void cached_columnwise(benchmark::State& state) {
  Bench b(state);
  const Weights<F> w(b, 1, DType::bf16, cached);
  const QuantizeTable table = test::placed(b.device(), formats::id_of<F>, w.matrices);
  quantize(b.stream(), table);
  time_calls(state, b, cached.elements(), [&] { build_columnwise(b.stream(), table); });
}

template <class F>
void reference_decode(benchmark::State& state) {
  const auto copy = reference::quantize<F>(Side::rowwise, cached, test::uniform<float>(cached.elements(), 1));
  time_reference(state, [&] {
    const auto values =
        reference::dequantize<F>(Side::rowwise, cached, copy, [](auto scale) { return F::block_step(scale); });
    benchmark::DoNotOptimize(reference::rounded_to_bf16(values).data());
  });
}
template <class F>
void cached_decode(benchmark::State& state) {
  Bench b(state);
  const Weights<F> w(b, 1, DType::bf16, cached);
  const QuantizeTable table = test::placed(b.device(), formats::id_of<F>, w.matrices);
  quantize(b.stream(), table);
  time_calls(state, b, cached.elements(), [&] { decode_operands(b.stream(), table, Side::rowwise); });
}

void tables(benchmark::internal::Benchmark* b) { b->ArgName("tensors")->Arg(1)->Arg(16)->Arg(1000)->Apply(timed); }
void large(benchmark::internal::Benchmark* b) { b->ArgName("tensors")->Arg(16)->Apply(timed); }

BENCHMARK(both_copies<formats::Bf16, DType::f32>)->Apply(large);
BENCHMARK(both_copies<formats::Fp8Block, DType::bf16>)->Apply(tables);
BENCHMARK(both_copies<formats::Fp8BlockOneD, DType::bf16>)->Apply(large);
BENCHMARK(both_copies<formats::Mxfp8, DType::bf16>)->Apply(tables);
BENCHMARK(both_copies<formats::Mxfp8, DType::f32>)->Apply(large);
BENCHMARK(both_copies<formats::Mxfp8Tiles, DType::bf16>)->Apply(large);
BENCHMARK(both_copies<formats::Nvfp4, DType::bf16>)->Apply(tables);
BENCHMARK(both_copies<formats::Nvfp4OneD, DType::bf16>)->Apply(large);
BENCHMARK(gradients<formats::Nvfp4OneD>)->Apply(large);
BENCHMARK(shard_amaxes<formats::Fp8Block>)->Apply(large);
BENCHMARK(shard_amaxes<formats::Nvfp4>)->Apply(large);
BENCHMARK(shard_casts<formats::Bf16>)->Apply(large);
BENCHMARK(shard_casts<formats::Fp8Block>)->Apply(tables);
BENCHMARK(shard_casts<formats::Mxfp8Tiles>)->Apply(large);
BENCHMARK(shard_casts<formats::Nvfp4>)->Apply(tables);
BENCHMARK(derived_copies<formats::Fp8Block>)->Apply(tables);
BENCHMARK(derived_copies<formats::Nvfp4>)->Apply(tables);
BENCHMARK(decoded_operands<formats::Fp8Block>)->Apply(large);
BENCHMARK(decoded_operands<formats::Mxfp8>)->Apply(large);
BENCHMARK(decoded_operands<formats::Nvfp4>)->Apply(large);
BENCHMARK(swizzled_scales<formats::Mxfp8>)->Apply(large);
/// An operation's reference and its kernel, one below the other.
template <class F>
void beside(const char* what, void (*reference)(benchmark::State&), void (*kernel)(benchmark::State&)) {
  const std::string format(F::name), operation(what);
  timed(benchmark::RegisterBenchmark(("reference_" + operation + "/" + format).c_str(), reference));
  timed(benchmark::RegisterBenchmark(("cached_" + operation + "/" + format).c_str(), kernel));
}
template <class F>
void beside_reference() {
  if constexpr (F::scaled) beside<F>("copies", reference_copies<F>, cached_copies<F>);
  if constexpr (F::agreement != formats::Agreement::nothing) beside<F>("cast", reference_cast<F>, cached_cast<F>);
  if constexpr (F::columnwise == formats::Columnwise::transposed)
    beside<F>("columnwise", reference_columnwise<F>, cached_columnwise<F>);
  if constexpr (F::scaled) beside<F>("decode", reference_decode<F>, cached_decode<F>);
}
template <class... F>
int all_beside_reference(formats::FormatList<F...>) {
  (beside_reference<F>(), ...);
  return 0;
}
[[maybe_unused]] const int registered = all_beside_reference(formats::Registry{});

}  // namespace
}  // namespace tessera::bench
