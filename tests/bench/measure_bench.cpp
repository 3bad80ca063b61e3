// Times statistics of one copy of an activation or a gradient, against reading its values once.
#include "kernels/quantize/measure.hpp"

#include <benchmark/benchmark.h>

#include "kernels/base/runtime.hpp"
#include "kernels/convert/convert.hpp"
#include "tests/support/quantized.hpp"

namespace tessera::bench {
namespace {

template <class F>
void measured(benchmark::State& state, Purpose purpose, Side side) {
  Device device;
  Stream& stream = device.compute();
  const std::int64_t edge = Runtime::back_end() == "Cuda" ? 8192 : 1024;
  const Shape shape{edge, edge};
  QuantizedMatrix matrix;
  matrix.matrix = {edge, edge};
  matrix.values = test::on_device(device, shape, test::uniform<bf16>(shape.elements(), 1));
  matrix.draws.step = test::on_device<std::uint64_t>(device, {1});
  if (F::tensor_amax)
    for (Copy* const copy : {&matrix.rowwise, &matrix.columnwise}) copy->amax = test::on_device<float>(device, {1});
  const Tensor sums = device.allocate(Category::staging, DType::u64, {QuantizerSums::words});
  clear(stream, sums);
  std::uint64_t first = 0;
  for (auto _ : state) {
    measure_copy(stream, formats::id_of<F>, matrix, purpose, side, {}, {}, sums);
    device.download(stream, &first, sums.flat(0, 1));  // waits
  }
  state.counters["elements/s"] = benchmark::Counter(static_cast<double>(shape.elements()),
                                                    benchmark::Counter::kIsIterationInvariantRate);
}

BENCHMARK_CAPTURE(measured<formats::Fp8BlockOneD>, activation, Purpose::activation, Side::rowwise);
BENCHMARK_CAPTURE(measured<formats::Mxfp8>, activation_columns, Purpose::activation, Side::columnwise);
BENCHMARK_CAPTURE(measured<formats::Nvfp4OneD>, gradient, Purpose::gradient, Side::rowwise);
BENCHMARK_CAPTURE(measured<formats::Nvfp4OneD>, gradient_columns, Purpose::gradient, Side::columnwise);

}  // namespace
}  // namespace tessera::bench
