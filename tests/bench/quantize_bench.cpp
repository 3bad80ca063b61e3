// Times quantization of whole weights and of shards, against the copy bandwidth of the same run and the serial
// reference. Tensors are laid out like a run's parameters: values of all contiguous, as are data and scales of each
// copy.
#include "kernels/quantize/quantize.hpp"

#include <numeric>

#include "tests/reference/quantize.hpp"
#include "tests/bench/beside_copy.hpp"
#include "tests/support/quantized.hpp"

namespace tessera::bench {
namespace {

using formats::Format;
using formats::Matrix;

constexpr Matrix cached{512, 512};  // on which the reference, and the kernels against it, are timed

/// Shape of each of `count` equal matrices of `elements` elements in all: large for 1 or 16, small for 1000.
Matrix one_of(std::int64_t tensors) {
  std::int64_t rows = 32;
  while (rows * rows * 8 * tensors <= total_elements()) rows *= 2;
  return {rows, total_elements() / tensors / rows / 128 * 128};
}

double bytes_of(const Tensor& t) { return t ? static_cast<double>(t.bytes()) : 0.0; }

/// Equal matrices of one format with both copies; values are random bf16, or fp32 masters.
template <Format F>
struct Weights {
  /// The benchmark's first argument is the number of matrices, its second the shape of each.
  Weights(Bench& b, const benchmark::State& state, DType type)
      : Weights(b, state.range(0), type, one_of(state.range(1))) {}
  Weights(Bench& b, std::int64_t tensors, DType type, Matrix each)
      : matrix(each), matrices(static_cast<std::size_t>(tensors)) {
    // Allocates one buffer of every matrix at once; place(matrix) is where the buffer belongs.
    const auto allocate = [&](DType t, std::int64_t elements, const auto& place) {
      const Tensor all = b.device().allocate(Category::weights, t, {tensors * elements});
      for (std::int64_t i = 0; i < tensors; ++i)
        place(matrices[static_cast<std::size_t>(i)]) = all.flat(i * elements, elements);
      return all;
    };
    const Tensor all = allocate(type, matrix.elements(), [](QuantizedMatrix& m) -> Tensor& { return m.values; });
    type == DType::bf16 ? draw<bf16>(b.device(), all) : draw<float>(b.device(), all);
    values = bytes_of(all);
    const Tensor step = test::on_device<std::uint64_t>(b.device(), {1});
    for (QuantizedMatrix& m : matrices) {
      m.matrix = matrix;
      m.draws.step = step;
    }
    for (Side side : {Side::rowwise, Side::columnwise}) {
      const auto copy = side == Side::rowwise ? &QuantizedMatrix::rowwise : &QuantizedMatrix::columnwise;
      const auto buffer = [&](Tensor Copy::*of, DType t, const Shape& shape) {
        return bytes_of(allocate(t, shape.elements(), [=](QuantizedMatrix& m) -> Tensor& { return m.*copy.*of; }));
      };
      const auto s = static_cast<int>(side);
      const Shape grid = formats::scale_shape<F>(side, matrix);
      if (side == Side::columnwise && F::columnwise == formats::Columnwise::shared)
        for (QuantizedMatrix& m : matrices) m.columnwise.data = m.rowwise.data;
      else
        data[s] = buffer(&Copy::data, dtype_of<typename F::Element::Storage>, formats::data_shape<F>(side, matrix));
      if (F::scaled) scales[s] = buffer(&Copy::scales, dtype_of<typename F::Scale>, grid);
      if (F::tensor_amax) buffer(&Copy::amax, DType::f32, {traits_of<F>().amaxes(side, matrix)});
      if (formats::swizzles<F>()) buffer(&Copy::swizzled, DType::u8, grid);
    }
  }
  std::int64_t elements() const { return static_cast<std::int64_t>(matrices.size()) * matrix.elements(); }

  Matrix matrix;
  std::vector<QuantizedMatrix> matrices;
  double values = 0, data[2] = {0, 0}, scales[2] = {0, 0};
};

/// The copies that an operation makes.
enum class Makes { both, rowwise, columnwise };
constexpr bool makes(Makes which, Side side) {
  return which == Makes::both || (which == Makes::rowwise) == (side == Side::rowwise);
}

template <class F, DType type, Purpose purpose = Purpose::weight>
void both_copies(benchmark::State& state) {
  Bench b(state);
  const Weights<F> w(b, state, type);
  const QuantizeTable table = test::placed(b.device(), formats::id_of<F>, w.matrices);
  // Formats with a scale of the whole tensor read the values twice.
  const double read = w.values * (F::tensor_amax ? 2 : 1);
  run_beside_copy(state, b, w.elements(), read + w.data[0] + w.data[1] + w.scales[0] + w.scales[1],
      [&] { quantize(b.stream(), table, Precision::bf16_first, purpose); });
}

/// What products of FP8 blocks take in a training step. Codes of values, of values with their column sums, of a gelu,
/// and of a gelu's gradient with its column sums. All but the values computed by the quantizer.
enum class Taken { values, summed, gelu, gradient };
template <Taken taken, Makes which>
void one_factor(benchmark::State& state) {
  using F = formats::Fp8BlockOneD;
  Bench b(state);
  const Weights<F> w(b, 1, DType::bf16, one_of(1));
  QuantizedMatrix item = w.matrices[0];
  const Tensor values = item.values.view({w.matrix.rows, w.matrix.columns}), pre = b.empty<bf16>(values.shape);
  if (taken == Taken::summed || taken == Taken::gradient)
    item.column_sums = b.empty<float>(column_sums_shape(w.matrix));
  draw<bf16>(b.device(), pre);
  double bytes = w.values * (taken == Taken::gradient ? 2 : 1);
  for (int s = 0; s < 2; ++s) {
    if (makes(which, static_cast<Side>(s)))
      bytes += w.data[s] + w.scales[s];
    else
      (s == 0 ? item.rowwise : item.columnwise) = {};
  }
  run_beside_copy(state, b, w.elements(), bytes, [&] {
    if (taken == Taken::values || taken == Taken::summed)
      quantize_one(b.stream(), formats::id_of<F>, item, Purpose::gradient);
    else if (taken == Taken::gelu)
      quantize_one(b.stream(), formats::id_of<F>, item, Gelu{values});
    else
      quantize_one(b.stream(), formats::id_of<F>, item, GeluGradient{values, pre});
  });
}

template <class F>
void tensor_amaxes(benchmark::State& state) {
  Bench b(state);
  const Weights<F> w(b, state, DType::bf16);
  const QuantizeTable table = test::placed(b.device(), formats::id_of<F>, w.matrices);
  run_beside_copy(state, b, w.elements(), w.values, [&] { find_amax(b.stream(), table); });
}

template <class F>
void shard_amaxes(benchmark::State& state) {
  Bench b(state);
  const Weights<F> w(b, state, DType::f32);
  const QuantizeTable table = test::placed(b.device(), formats::id_of<F>, w.matrices);
  const Tensor amaxes = b.empty<bf16>({table.amax_entries()});
  run_beside_copy(state, b, w.elements(), w.values + static_cast<double>(amaxes.bytes()),
      [&] { block_amax(b.stream(), table, amaxes); });
}

template <class F>
void shard_casts(benchmark::State& state) {
  Bench b(state);
  const Weights<F> w(b, state, DType::f32);
  const QuantizeTable table = test::placed(b.device(), formats::id_of<F>, w.matrices);
  const Tensor amaxes = b.empty<bf16>({table.amax_entries()});
  if constexpr (F::scaled) block_amax(b.stream(), table, amaxes);
  run_beside_copy(state, b, w.elements(), w.values + w.data[0] + w.scales[0] + static_cast<double>(amaxes.bytes()),
      [&] { partial_cast(b.stream(), table, amaxes); });
}

template <class F>
void derived_copies(benchmark::State& state) {
  Bench b(state);
  const Weights<F> w(b, state, DType::bf16);
  const QuantizeTable table = test::placed(b.device(), formats::id_of<F>, w.matrices);
  quantize(b.stream(), table);
  run_beside_copy(state, b, w.elements(), w.data[0] + w.data[1] + w.scales[0] + w.scales[1],
      [&] { build_columnwise(b.stream(), table); });
}

/// Dequantization: to bf16 as operands of a GEMM, to fp32 with the scale of each tensor.
template <class F, DType type>
void decoded(benchmark::State& state) {
  Bench b(state);
  const Weights<F> w(b, state, type);
  const QuantizeTable table = test::placed(b.device(), formats::id_of<F>, w.matrices);
  quantize(b.stream(), table);
  run_beside_copy(state, b, w.elements(), w.values + w.data[0] + w.scales[0],
      [&] { (type == DType::bf16 ? decode_factors : dequantize)(b.stream(), table, Side::rowwise); });
}

/// bf16 factors made in one launch, of one matrix.
template <class F, Makes which, Purpose purpose>
void factors(benchmark::State& state) {
  Bench b(state);
  QuantizedMatrix m;
  m.matrix = one_of(1);
  m.values = b.empty<bf16>({m.matrix.rows, m.matrix.columns});
  draw<bf16>(b.device(), m.values);
  m.draws.step = test::on_device<std::uint64_t>(b.device(), {1});
  double bytes = bytes_of(m.values) * (F::tensor_amax ? 2 : 1);
  for (Side side : {Side::rowwise, Side::columnwise}) {
    if (!makes(which, side)) continue;
    Copy& copy = side == Side::rowwise ? m.rowwise : m.columnwise;
    copy.data = b.empty<bf16>(m.values.shape);
    if (F::tensor_amax) copy.amax = b.empty<float>({traits_of<F>().amaxes(side, m.matrix)});
    bytes += bytes_of(copy.data);
  }
  run_beside_copy(state, b, m.matrix.elements(), bytes,
                  [&] { make_factors(b.stream(), formats::id_of<F>, m, purpose); });
}

template <class F>
void swizzled_scales(benchmark::State& state) {
  Bench b(state);
  const Weights<F> w(b, state, DType::bf16);
  const QuantizeTable table = test::placed(b.device(), formats::id_of<F>, w.matrices);
  quantize(b.stream(), table);
  run_beside_copy(state, b, w.elements(), 2 * (w.scales[0] + w.scales[1]), [&] { swizzle_scales(b.stream(), table); });
}

// ---- the serial oracle, and the host's kernels on the same matrix, which should be at least ten times faster

template <class Op>
void time_reference(benchmark::State& state, const Op& op) {
  for (auto _ : state) op();
  state.counters["elements/s"] =
      benchmark::Counter(static_cast<double>(cached.elements()), benchmark::Counter::kIsIterationInvariantRate);
}

/// A quantized matrix of format F that fits the cache, and the bytes that a kernel moves, against a copy in cache.
template <Format F>
class Cached {
 public:
  explicit Cached(benchmark::State& state, DType type = DType::bf16) : state_(state), b(state), w(b, 1, type, cached) {
    quantize(b.stream(), table(w.matrices[0]));
  }
  QuantizeTable table(const QuantizedMatrix& item) { return test::placed(b.device(), formats::id_of<F>, {item}); }
  QuantizeTable table() { return table(w.matrices[0]); }
  template <class Op>
  void time(double bytes, const Op& op) {
    run_beside_copy(state_, b, cached.elements(), bytes, op);
  }

 private:
  benchmark::State& state_;

 public:
  Bench b;
  Weights<F> w;
};

std::vector<std::int64_t> row_numbers() {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(cached.rows));
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

template <class F, DType type, Makes which, Purpose purpose>
void reference_quantize(benchmark::State& state) {
  const auto x = test::uniform<float>(cached.elements(), 1);
  const bool rotates = F::hadamard && purpose != Purpose::weight;
  reference::DrawByte draw;
  if (purpose == Purpose::gradient) draw = reference::draw_bytes({}, row_numbers(), cached.columns);
  time_reference(state, [&] {
    std::vector<float> rounded;
    if (type == DType::f32) rounded = reference::rounded_to_bf16(x);
    const std::vector<float>& seen = type == DType::f32 ? rounded : x;
    for (Side side : {Side::rowwise, Side::columnwise}) {
      if (!makes(which, side)) continue;
      const bool rotated = rotates && side == Side::columnwise;
      const auto copy = rotated ? reference::quantize<F>(side, cached, reference::hadamard(cached, seen), draw)
                                : reference::quantize<F>(side, cached, seen, draw);
      benchmark::DoNotOptimize(copy.data.data());
    }
  });
}
template <class F, DType type, Makes which, Purpose purpose>
void cached_quantize(benchmark::State& state) {
  Cached<F> c(state, type);
  QuantizedMatrix item = c.w.matrices[0];
  if (!makes(which, Side::rowwise)) item.rowwise = {};
  if (!makes(which, Side::columnwise)) item.columnwise = {};
  double bytes = c.w.values * (F::tensor_amax ? 2 : 1);
  for (int s = 0; s < 2; ++s)
    if (makes(which, static_cast<Side>(s))) bytes += c.w.data[s] + c.w.scales[s];
  const QuantizeTable table = c.table(item);
  c.time(bytes, [&] { quantize(c.b.stream(), table, Precision::bf16_first, purpose); });
}

template <class F>
void reference_amax(benchmark::State& state) {
  const auto x = test::uniform<float>(cached.elements(), 1);
  time_reference(state,
                 [&] { benchmark::DoNotOptimize(reference::largest(cached, x, 0, cached.rows, 0, cached.columns)); });
}
template <class F>
void cached_amax(benchmark::State& state) {
  Cached<F> c(state);
  const QuantizeTable table = c.table();
  c.time(c.w.values, [&] { find_amax(c.b.stream(), table); });
}

template <class F>
void reference_block_amax(benchmark::State& state) {
  const auto x = test::uniform<float>(cached.elements(), 1);
  time_reference(state, [&] {
    benchmark::DoNotOptimize(reference::block_amaxes<F>(cached, reference::rounded_to_bf16(x)).data());
  });
}
template <class F>
void cached_block_amax(benchmark::State& state) {
  Cached<F> c(state, DType::f32);
  const QuantizeTable table = c.table();
  const Tensor amaxes = c.b.template empty<bf16>({table.amax_entries()});
  c.time(c.w.values + bytes_of(amaxes), [&] { block_amax(c.b.stream(), table, amaxes); });
}

/// A sharded quantization: amaxes of blocks, then data and scales.
template <class F>
void reference_cast(benchmark::State& state) {
  const auto x = test::uniform<float>(cached.elements(), 1);
  time_reference(state, [&] {
    const auto rounded = reference::rounded_to_bf16(x);
    if constexpr (F::scaled)
      benchmark::DoNotOptimize(reference::quantize<F>(Side::rowwise, cached, rounded).data.data());
    else
      benchmark::DoNotOptimize(rounded.data());
  });
}
template <class F>
void cached_cast(benchmark::State& state) {
  Cached<F> c(state, DType::f32);
  const QuantizeTable table = c.table();
  const Tensor amaxes = c.b.template empty<bf16>({table.amax_entries()});
  c.time(c.w.values * (F::scaled ? 2 : 1) + c.w.data[0] + c.w.scales[0] + bytes_of(amaxes), [&] {
    if constexpr (F::scaled) block_amax(c.b.stream(), table, amaxes);
    partial_cast(c.b.stream(), table, amaxes);
  });
}

template <class F>
void reference_columnwise(benchmark::State& state) {
  const auto copy = reference::quantize<F>(Side::rowwise, cached, test::uniform<float>(cached.elements(), 1));
  time_reference(state, [&] { benchmark::DoNotOptimize(reference::columnwise_of<F>(cached, copy).data.data()); });
}
template <class F>
void cached_columnwise(benchmark::State& state) {
  Cached<F> c(state);
  const QuantizeTable table = c.table();
  c.time(c.w.data[0] + c.w.data[1] + c.w.scales[0] + c.w.scales[1], [&] { build_columnwise(c.b.stream(), table); });
}

template <class F, DType type, Side side>
void reference_decode(benchmark::State& state) {
  const auto copy = reference::quantize<F>(side, cached, test::uniform<float>(cached.elements(), 1));
  time_reference(state, [&] {
    const auto values = reference::dequantize<F>(side, cached, copy, type == DType::bf16 ? F::factor_step : F::step);
    if (type == DType::bf16)
      benchmark::DoNotOptimize(reference::rounded_to_bf16(values).data());
    else
      benchmark::DoNotOptimize(values.data());
  });
}
/// Dequantization: to bf16 as the operand of a GEMM, to fp32 with the scale of the tensor.
template <class F, DType type, Side side>
void cached_decode(benchmark::State& state) {
  Cached<F> c(state, type);
  const QuantizeTable table = c.table();
  const int s = static_cast<int>(side);
  const double bytes = c.w.values + (c.w.data[s] > 0 ? c.w.data[s] : c.w.data[0]) + c.w.scales[s];
  c.time(bytes, [&] { (type == DType::bf16 ? decode_factors : dequantize)(c.b.stream(), table, side); });
}

template <class F>
void reference_swizzle(benchmark::State& state) {
  const auto x = test::uniform<float>(cached.elements(), 1);
  std::vector<std::uint8_t> scales[2];
  if constexpr (formats::swizzles<F>())
    for (Side side : {Side::rowwise, Side::columnwise})
      scales[static_cast<int>(side)] = reference::quantize<F>(side, cached, x).scales;
  time_reference(state, [&] {
    for (Side side : {Side::rowwise, Side::columnwise})
      benchmark::DoNotOptimize(reference::swizzled_scales<F>(side, cached, scales[static_cast<int>(side)]).data());
  });
}
template <class F>
void cached_swizzle(benchmark::State& state) {
  Cached<F> c(state);
  const QuantizeTable table = c.table();
  c.time(2 * (c.w.scales[0] + c.w.scales[1]), [&] { swizzle_scales(c.b.stream(), table); });
}

/// Cases: 1, 16 and 1000 tensors that together fill a whole table; then 1 and 16 tensors as small as those of the 1000.
void tables(benchmark::internal::Benchmark* b) {
  b->ArgNames({"tensors", "of"})->Args({1, 1})->Args({16, 16})->Args({1000, 1000})->Args({1, 1000})->Args({16, 1000});
  timed(b);
}

BENCHMARK(both_copies<formats::Bf16, DType::f32>)->Apply(tables);
BENCHMARK(both_copies<formats::Fp8Block, DType::bf16>)->Apply(tables);
BENCHMARK(both_copies<formats::Fp8BlockOneD, DType::bf16>)->Apply(tables);
BENCHMARK(both_copies<formats::Fp8Tensor, DType::bf16>)->Apply(tables);
BENCHMARK(both_copies<formats::Fp8TensorE5m2, DType::bf16>)->Apply(tables);
BENCHMARK(both_copies<formats::Mxfp8, DType::bf16>)->Apply(tables);
BENCHMARK(both_copies<formats::Mxfp8, DType::f32>)->Apply(tables);
BENCHMARK(both_copies<formats::Mxfp8Tiles, DType::bf16>)->Apply(tables);
BENCHMARK(both_copies<formats::Nvfp4, DType::bf16>)->Apply(tables);
BENCHMARK(both_copies<formats::Nvfp4OneD, DType::bf16>)->Apply(tables);
BENCHMARK(both_copies<formats::Nvfp4OneD, DType::bf16, Purpose::activation>)->Apply(tables);
BENCHMARK(both_copies<formats::Nvfp4OneD, DType::bf16, Purpose::gradient>)->Apply(tables);
BENCHMARK(both_copies<formats::Nvfp4Row, DType::bf16, Purpose::gradient>)->Apply(tables);
BENCHMARK(one_factor<Taken::values, Makes::rowwise>)->Apply(timed);
BENCHMARK(one_factor<Taken::values, Makes::columnwise>)->Apply(timed);
BENCHMARK(one_factor<Taken::values, Makes::both>)->Apply(timed);
BENCHMARK(one_factor<Taken::summed, Makes::both>)->Apply(timed);
BENCHMARK(one_factor<Taken::gelu, Makes::rowwise>)->Apply(timed);
BENCHMARK(one_factor<Taken::gelu, Makes::columnwise>)->Apply(timed);
BENCHMARK(one_factor<Taken::gelu, Makes::both>)->Apply(timed);
BENCHMARK(one_factor<Taken::gradient, Makes::both>)->Apply(timed);
BENCHMARK(tensor_amaxes<formats::Nvfp4>)->Apply(tables);
BENCHMARK(shard_amaxes<formats::Fp8Block>)->Apply(tables);
BENCHMARK(shard_amaxes<formats::Mxfp8Tiles>)->Apply(tables);
BENCHMARK(shard_amaxes<formats::Nvfp4>)->Apply(tables);
BENCHMARK(shard_casts<formats::Bf16>)->Apply(tables);
BENCHMARK(shard_casts<formats::Fp8Block>)->Apply(tables);
BENCHMARK(shard_casts<formats::Fp8Tensor>)->Apply(tables);
BENCHMARK(shard_casts<formats::Mxfp8Tiles>)->Apply(tables);
BENCHMARK(shard_casts<formats::Nvfp4>)->Apply(tables);
BENCHMARK(derived_copies<formats::Fp8Block>)->Apply(tables);
BENCHMARK(derived_copies<formats::Nvfp4>)->Apply(tables);
BENCHMARK(decoded<formats::Fp8Block, DType::bf16>)->Apply(tables);
BENCHMARK(decoded<formats::Fp8Block, DType::f32>)->Apply(tables);
BENCHMARK(decoded<formats::Mxfp8, DType::bf16>)->Apply(tables);
BENCHMARK(decoded<formats::Mxfp8, DType::f32>)->Apply(tables);
BENCHMARK(decoded<formats::Nvfp4, DType::bf16>)->Apply(tables);
BENCHMARK(decoded<formats::Nvfp4, DType::f32>)->Apply(tables);
BENCHMARK(factors<formats::Fp8BlockOneD, Makes::both, Purpose::gradient>)->Apply(timed);
BENCHMARK(factors<formats::Fp8TensorE5m2, Makes::both, Purpose::gradient>)->Apply(timed);
BENCHMARK(factors<formats::Mxfp8, Makes::both, Purpose::gradient>)->Apply(timed);
BENCHMARK(factors<formats::Mxfp8, Makes::rowwise, Purpose::activation>)->Apply(timed);
BENCHMARK(factors<formats::Mxfp8, Makes::columnwise, Purpose::activation>)->Apply(timed);
BENCHMARK(factors<formats::Nvfp4OneD, Makes::both, Purpose::gradient>)->Apply(timed);
BENCHMARK(factors<formats::Nvfp4Row, Makes::both, Purpose::gradient>)->Apply(timed);
BENCHMARK(factors<formats::Nvfp4OneD, Makes::rowwise, Purpose::activation>)->Apply(timed);
BENCHMARK(factors<formats::Nvfp4OneD, Makes::columnwise, Purpose::activation>)->Apply(timed);
BENCHMARK(swizzled_scales<formats::Mxfp8>)->Apply(tables);
BENCHMARK(swizzled_scales<formats::Nvfp4>)->Apply(tables);

/// Registers an operation's reference and its kernel, one after the other.
template <class F>
void beside(const std::string& operation, void (*reference)(benchmark::State&), void (*kernel)(benchmark::State&)) {
  const std::string format(F::name);
  timed(benchmark::RegisterBenchmark(("reference_" + operation + "/" + format).c_str(), reference));
  timed(benchmark::RegisterBenchmark(("cached_" + operation + "/" + format).c_str(), kernel));
}
template <class F, DType type, Makes which, Purpose purpose = Purpose::weight>
void quantize_beside(const std::string& operation) {
  beside<F>(operation, reference_quantize<F, type, which, purpose>, cached_quantize<F, type, which, purpose>);
}
template <class F, DType type, Side side>
void decode_beside(const std::string& operation) {
  beside<F>(operation, reference_decode<F, type, side>, cached_decode<F, type, side>);
}
template <class F>
void beside_reference() {
  using formats::Columnwise;
  if constexpr (F::scaled) {
    quantize_beside<F, DType::bf16, Makes::both>("quantize_both");
    quantize_beside<F, DType::f32, Makes::both>("quantize_both_fp32");
    quantize_beside<F, DType::bf16, Makes::rowwise>("quantize_rowwise");
    if constexpr (F::columnwise != Columnwise::shared)
      quantize_beside<F, DType::bf16, Makes::columnwise>("quantize_columnwise");
    decode_beside<F, DType::bf16, Side::rowwise>("operand_rowwise");
    decode_beside<F, DType::bf16, Side::columnwise>("operand_columnwise");
    decode_beside<F, DType::f32, Side::rowwise>("dequantize_rowwise");
  }
  if constexpr (F::hadamard) {
    quantize_beside<F, DType::bf16, Makes::both, Purpose::activation>("activation");
    quantize_beside<F, DType::bf16, Makes::both, Purpose::gradient>("gradient");
  }
  if constexpr (F::tensor_amax) beside<F>("amax", reference_amax<F>, cached_amax<F>);
  if constexpr (F::agreement != formats::Agreement::nothing)
    beside<F>("block_amax", reference_block_amax<F>, cached_block_amax<F>);
  if constexpr (F::columnwise != Columnwise::requantized) beside<F>("cast", reference_cast<F>, cached_cast<F>);
  if constexpr (F::columnwise == Columnwise::transposed)
    beside<F>("columnwise", reference_columnwise<F>, cached_columnwise<F>);
  if constexpr (formats::swizzles<F>()) beside<F>("swizzle", reference_swizzle<F>, cached_swizzle<F>);
}
template <class... F>
int all_beside_reference(formats::FormatList<F...>) {
  (beside_reference<F>(), ...);
  return 0;
}
[[maybe_unused]] const int registered = all_beside_reference(formats::Registry{});

}  // namespace
}  // namespace tessera::bench
