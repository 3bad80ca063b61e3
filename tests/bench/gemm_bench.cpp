#include "kernels/gemm/gemm.hpp"

#include "kernels/base/runtime.hpp"
#include "kernels/formats/registry.hpp"
#include "kernels/quantize/quantize.hpp"
#include "tests/bench/timing.hpp"

namespace tessera::bench {
namespace {

/// Arguments: rows M, inputs K, outputs N of one linear layer.
Work product(const benchmark::State& s) { return {2.0 * static_cast<double>(s.range(0) * s.range(1) * s.range(2))}; }

template <class T> void forward(benchmark::State& state) {
  Bench b(state);
  const Tensor x = b.random<T>({state.range(0), state.range(1)}), w = b.random<T>({state.range(2), state.range(1)});
  const Tensor y = b.empty<T>({state.range(0), state.range(2)}), bias = b.random<T>({state.range(2)});
  b.run(product(state), [&] { linear_forward(b.stream(), y, x, {w}, bias); });
}

template <class T> void forward_gelu(benchmark::State& state) {
  Bench b(state);
  const Tensor x = b.random<T>({state.range(0), state.range(1)}), w = b.random<T>({state.range(2), state.range(1)});
  const Tensor y = b.empty<T>({state.range(0), state.range(2)}), pre = b.empty<T>(y.shape);
  b.run(product(state), [&] { linear_gelu_forward(b.stream(), y, pre, x, {w}); });
}

template <class T> void input_gradient(benchmark::State& state) {
  Bench b(state);
  const Tensor dx = b.empty<T>({state.range(0), state.range(1)}), w = b.random<T>({state.range(2), state.range(1)});
  const Tensor dy = b.random<T>({state.range(0), state.range(2)});
  b.run(product(state), [&] { linear_input_gradient(b.stream(), dx, dy, {w}); });
}

template <class T> void weight_gradient(benchmark::State& state) {
  Bench b(state);
  const Tensor x = b.random<T>({state.range(0), state.range(1)}), dy = b.random<T>({state.range(0), state.range(2)});
  const Gradient dw{b.random<float>({state.range(2), state.range(1)}), 1};
  b.run(product(state), [&] { linear_weight_gradient(b.stream(), dw, dy, x); });
}

/// Rows spread evenly over eight experts.
template <class T> struct Experts {
  static constexpr std::int64_t count = 8;
  std::int64_t m, k, n;
  Bench b;
  Tensor x = b.random<T>({m, k}), y = b.random<T>({m, n}), offsets;

  explicit Experts(benchmark::State& state) : m(state.range(0)), k(state.range(1)), n(state.range(2)), b(state) {
    std::vector<std::int32_t> borders;
    for (std::int64_t e = 0; e <= count; ++e) borders.push_back(static_cast<std::int32_t>(e * m / count));
    offsets = test::on_device(b.device(), borders);
  }
  Operand weight() { return {b.random<T>({count * n, k}).row_range(0, n), count, n * k}; }
};

template <class T> void experts(benchmark::State& state) {
  Experts<T> e(state);
  const Operand w = e.weight();
  e.b.run(product(state), [&] { expert_forward(e.b.stream(), e.y, e.x, {&w, 1}, e.offsets); });
}

template <class T> void experts_input_gradient(benchmark::State& state) {
  Experts<T> e(state);
  const Operand w = e.weight();
  e.b.run(product(state), [&] { expert_input_gradient(e.b.stream(), e.x, e.y, {&w, 1}, e.offsets); });
}

template <class T> void experts_weight_gradient(benchmark::State& state) {
  Experts<T> e(state);
  const Tensor all = e.b.template random<float>({e.count * e.n, e.k});
  const Gradient dw{all.row_range(0, e.n), 1, e.count, e.n * e.k};
  e.b.run(product(state), [&] { expert_weight_gradient(e.b.stream(), {&dw, 1}, e.y, e.x, e.offsets, {}); });
}

/// An operand of codes: one side's copy of matrices of random values.
template <formats::Format F> struct Coded {
  QuantizedMatrix item;
  Side side;
  Coded(Bench& b, formats::Matrix one, std::int64_t members, Side of) : side(of) {
    item.matrix = one;
    item.members = members;
    item.values = b.random<bf16>({members * one.rows, one.columns});
    const Shape codes = formats::data_shape<F>(side, one), scales = formats::scale_shape<F>(side, one);
    copy().data = b.empty<typename F::Element::Storage>({members * codes[0], codes[1]});
    copy().scales = b.empty<typename F::Scale>({members * scales[0], scales[1]});
    quantize_one(b.stream(), formats::id_of<F>, item, Purpose::weight);
  }
  Copy& copy() { return side == Side::rowwise ? item.rowwise : item.columnwise; }
  Operand operand() {
    const Tensor &data = copy().data, &scales = copy().scales;
    return {{data.data, data.type, formats::data_shape<F>(side, item.matrix)},
            Codes{formats::id_of<F>, side, {scales.data, scales.type, formats::scale_shape<F>(side, item.matrix)}, {}},
            item.members,
            item.matrix.elements()};
  }
};

/// The same with FP8-block codes, as quantizers make them.
void experts_fp8(benchmark::State& state) {
  Experts<bf16> e(state);
  Coded<formats::Fp8BlockOneD> x(e.b, {e.m, e.k}, 1, Side::rowwise);
  Coded<formats::Fp8Block> w(e.b, {e.n, e.k}, e.count, Side::rowwise);
  const Operand weight = w.operand();
  e.b.run(product(state), [&] { expert_forward(e.b.stream(), e.y, x.operand(), {&weight, 1}, e.offsets); });
}

void experts_fp8_input_gradient(benchmark::State& state) {
  Experts<bf16> e(state);
  Coded<formats::Fp8BlockOneD> dy(e.b, {e.m, e.n}, 1, Side::rowwise);
  Coded<formats::Fp8Block> w(e.b, {e.n, e.k}, e.count, Side::columnwise);
  const Operand weight = w.operand();
  e.b.run(product(state), [&] { expert_input_gradient(e.b.stream(), e.x, dy.operand(), {&weight, 1}, e.offsets); });
}

void experts_fp8_weight_gradient(benchmark::State& state) {
  Experts<bf16> e(state);
  Coded<formats::Fp8BlockOneD> x(e.b, {e.m, e.k}, 1, Side::columnwise), dy(e.b, {e.m, e.n}, 1, Side::columnwise);
  const Gradient dw{e.b.random<float>({e.count * e.n, e.k}).row_range(0, e.n), 1, e.count, e.n * e.k};
  e.b.run(product(state), [&] {
    expert_weight_gradient(e.b.stream(), {&dw, 1}, dy.operand(), x.operand(), e.offsets, {});
  });
}

void sizes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"M", "K", "N"})->Args({2048, 256, 1024})->Args({2048, 1024, 256})->Args({4096, 128, 512})->Apply(timed);
  if (Runtime::back_end() == "Cuda") b->Args({16384, 1024, 4096})->Args({16384, 4096, 1024});
}
BENCHMARK(forward<float>)->Apply(sizes);
BENCHMARK(forward<bf16>)->Apply(sizes);
BENCHMARK(forward_gelu<float>)->Apply(sizes);
BENCHMARK(forward_gelu<bf16>)->Apply(sizes);
BENCHMARK(input_gradient<float>)->Apply(sizes);
BENCHMARK(input_gradient<bf16>)->Apply(sizes);
BENCHMARK(weight_gradient<float>)->Apply(sizes);
BENCHMARK(weight_gradient<bf16>)->Apply(sizes);
BENCHMARK(experts<float>)->Apply(sizes);
BENCHMARK(experts<bf16>)->Apply(sizes);
BENCHMARK(experts_input_gradient<float>)->Apply(sizes);
BENCHMARK(experts_input_gradient<bf16>)->Apply(sizes);
BENCHMARK(experts_weight_gradient<float>)->Apply(sizes);
BENCHMARK(experts_weight_gradient<bf16>)->Apply(sizes);
BENCHMARK(experts_fp8)->Apply(sizes);
BENCHMARK(experts_fp8_input_gradient)->Apply(sizes);
BENCHMARK(experts_fp8_weight_gradient)->Apply(sizes);

}  // namespace
}  // namespace tessera::bench
