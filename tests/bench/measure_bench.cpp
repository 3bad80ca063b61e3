// Times statistics of one copy of an activation or a gradient, against reading its values once.
#include "kernels/quantize/measure.hpp"

#include <benchmark/benchmark.h>

#include "kernels/base/runtime.hpp"
#include "kernels/convert/convert.hpp"
#include "kernels/formats/registry.hpp"
#include "tests/support/quantized.hpp"

namespace tessera::bench {
namespace {

void measured(benchmark::State& state, FormatId format, Purpose purpose, Side side) {
  Device device;
  Stream& stream = device.compute();
  const std::int64_t edge = Runtime::back_end() == "Cuda" ? 8192 : 1024;
  const Shape shape{edge, edge};
  QuantizedMatrix matrix;
  matrix.matrix = {edge, edge};
  matrix.values = test::on_device(device, shape, test::uniform<bf16>(shape.elements(), 1));
  matrix.draws.step = test::on_device<std::uint64_t>(device, {1});
  if (traits_of(format).tensor_amax)
    for (Copy* const copy : {&matrix.rowwise, &matrix.columnwise}) copy->amax = test::on_device<float>(device, {1});
  const Tensor sums = device.allocate(Category::staging, DType::u64, {QuantizerSums::words});
  clear(stream, sums);
  std::uint64_t first = 0;
  for (auto _ : state) {
    measure_copy(stream, format, matrix, purpose, side, {}, {}, sums);
    device.download(stream, &first, sums.flat(0, 1));  // waits
  }
  state.counters["elements/s"] = benchmark::Counter(static_cast<double>(shape.elements()),
                                                    benchmark::Counter::kIsIterationInvariantRate);
}

using formats::id_of;
BENCHMARK_CAPTURE(measured, fp8_block, id_of<formats::Fp8BlockOneD>, Purpose::activation, Side::rowwise);
BENCHMARK_CAPTURE(measured, mxfp8_columns, id_of<formats::Mxfp8>, Purpose::activation, Side::columnwise);
BENCHMARK_CAPTURE(measured, nvfp4, id_of<formats::Nvfp4OneD>, Purpose::gradient, Side::rowwise);
BENCHMARK_CAPTURE(measured, nvfp4_columns, id_of<formats::Nvfp4OneD>, Purpose::gradient, Side::columnwise);

}  // namespace
}  // namespace tessera::bench
