// Times kernels on flat slices: optimizers, norm, sum in rank order, digest, initial values.
#include "kernels/digest/digest.hpp"
#include "kernels/newton_schulz/newton_schulz.hpp"
#include "kernels/optim/adamw.hpp"
#include "kernels/optim/average.hpp"
#include "kernels/optim/balance.hpp"
#include "kernels/optim/muon.hpp"
#include "kernels/random/random.hpp"
#include "kernels/reduce/reduce.hpp"
#include "kernels/reduce/wire.hpp"
#include "tests/bench/beside_copy.hpp"

namespace tessera::bench {
namespace {

constexpr std::int64_t elements = std::int64_t{4} << 20;

/// AdamW on `runs` runs of equal length, alternately with and without decay.
template <class M> void adamw(benchmark::State& state) {
  Bench b(state);
  const Tensor master = b.random<float>({elements}), gradient = b.random<float>({elements});
  const Tensor m = b.random<M>({elements}), v = b.random<M>({elements}, 0, 1);
  std::vector<AdamWRange> runs;
  for (std::int64_t r = 0, length = elements / state.range(0); r < state.range(0); ++r) {
    const auto part = [&](const Tensor& whole) { return whole.flat(r * length, length); };
    runs.push_back({part(master), part(m), part(v), part(gradient), r % 2 == 0 ? 0.1f : 0.0f});
  }
  AdamWTable table(runs);
  table.bind(b.empty<std::uint8_t>({table.bytes()}));
  b.device().upload(b.stream(), table);
  const Tensor rate = b.random<float>({1}, 1e-4, 2e-4);
  const Tensor clip = test::on_device(b.device(), std::vector<std::uint8_t>(sizeof(ClipResult)));
  const Tensor clock = test::on_device(b.device(), std::vector<std::uint8_t>(sizeof(AdamWClock)));
  auto* const result = static_cast<ClipResult*>(clip.data);
  auto* const ticks = static_cast<AdamWClock*>(clock.data);
  const double bytes =
      2.0 * static_cast<double>(master.bytes() + m.bytes() + v.bytes()) + static_cast<double>(gradient.bytes());
  b.run({0, bytes}, [&] { adamw_step(b.stream(), {}, table, ticks, result, rate.as<float>()); });
}

/// Selection biases of 60 layers of 256 experts.
void balance(benchmark::State& state) {
  Bench b(state);
  const Shape shape{60 * 256};
  const Tensor bias = b.random<float>(shape), count = b.random<float>(shape), experts = b.random<float>(shape, 1, 256);
  const Tensor clip = test::on_device(b.device(), std::vector<std::uint8_t>(sizeof(ClipResult)));
  b.run({0, 4.0 * static_cast<double>(bias.bytes())}, [&] {
    balance_step(b.stream(), bias, count, experts, 0.001f, 100, static_cast<const ClipResult*>(clip.data));
  });
}

/// Moving averages of masters, and their exchange with them.
void average(benchmark::State& state) {
  Bench b(state);
  const Tensor averages = b.random<float>({elements}), masters = b.random<float>({elements});
  const Tensor clip = test::on_device(b.device(), std::vector<std::uint8_t>(sizeof(ClipResult)));
  b.run({0, 7.0 * static_cast<double>(masters.bytes())}, [&] {
    average_step(b.stream(), averages, masters, 0.001f, static_cast<const ClipResult*>(clip.data));
    exchange_values(b.stream(), averages, masters);
  });
}

/// Muon's kernels before and after orthogonalisation.
void muon(benchmark::State& state) {
  Bench b(state);
  const Tensor master = b.random<float>({elements}), gradient = b.random<float>({elements});
  const Tensor momentum = b.random<float>({elements});
  std::vector<MuonPart> parts;
  for (std::int64_t r = 0, length = elements / state.range(0); r < state.range(0); ++r) {
    const auto part = [&](const Tensor& whole) { return whole.flat(r * length, length); };
    parts.push_back({part(master), part(momentum), part(gradient), 1});
  }
  MuonTable table(parts);
  table.bind(b.empty<std::uint8_t>({table.bytes()}));
  b.device().upload(b.stream(), table);
  const Tensor rate = b.random<float>({1}, 1e-4, 2e-4);
  const Tensor clip = test::on_device(b.device(), std::vector<std::uint8_t>(sizeof(ClipResult)));
  const auto* const result = static_cast<const ClipResult*>(clip.data);
  b.run({0, 7.0 * static_cast<double>(master.bytes())}, [&] {
    muon_momentum(b.stream(), {}, table, result);
    muon_update(b.stream(), 0.1, table, result, rate.as<float>());
  });
}

/// Five Newton-Schulz steps of four matrices of one width, among them some with twice and half as many rows.
void orthogonalisation(benchmark::State& state) {
  Bench b(state);
  const std::int64_t n = state.range(0);
  std::vector<Tensor> matrices;
  double flops = 0;
  for (const std::int64_t rows : {n, n, 2 * n, n / 2}) {
    matrices.push_back(b.random<float>({rows, n}));
    const auto small = static_cast<double>(std::min(rows, n)), big = static_cast<double>(std::max(rows, n));
    flops += 5 * (4 * small * small * big + 2 * small * small * small);
  }
  NewtonSchulzTable table(matrices);
  table.bind(b.empty<std::uint8_t>({table.bytes()}));
  b.device().upload(b.stream(), table);
  const std::vector<NewtonSchulzStep> steps(5, {3.4445f, -4.7750f, 2.0315f});
  b.run({flops, 0}, [&] { newton_schulz(b.stream(), steps, table); });
}

void squares(benchmark::State& state) {
  Bench b(state);
  const Tensor x = b.random<float>({elements});
  const Tensor words = test::on_device(b.device(), std::vector<std::int64_t>(ExactSum::words));
  b.run({0, static_cast<double>(x.bytes())}, [&] { add_squares(b.stream(), words, {&x, 1}); });
}

SumTerms parts_of(Bench& b, std::int64_t ranks) {
  const std::int64_t n = elements / ranks;
  return {b.random<float>({n}), b.random<float>({ranks - 1, n}), 1};
}

void rank_sums(benchmark::State& state) {
  Bench b(state);
  const SumTerms parts = parts_of(b, state.range(0));
  b.run({0, static_cast<double>(2 * parts.own.values.bytes() + parts.others.values.bytes())},
        [&] { sum_in_order(b.stream(), parts.own.values, parts); });
}

void rank_sums_added(benchmark::State& state) {
  Bench b(state);
  const SumTerms parts = parts_of(b, state.range(0));
  const Tensor sum = b.random<float>({parts.own.values.elements()});
  b.run({0, static_cast<double>(parts.own.values.bytes() + parts.others.values.bytes() + 2 * sum.bytes())},
        [&] { add_in_order(b.stream(), sum, parts); });
}

/// Rows of n gradients on a wire, with room for them.
WireArray room_on(Bench& b, GradientWire wire, const Shape& shape) {
  const WireTraits traits = traits_of(wire);
  WireArray room(b.device().allocate(Category::staging, traits.values, shape));
  if (traits.block == 0) return room;
  const std::int64_t blocks = shape[-1] / traits.block;
  const Shape scales = shape.rank() == 1 ? Shape{blocks} : Shape{shape[0], blocks};
  room.scales = b.device().allocate(Category::staging, traits.scales, scales);
  return room;
}
/// The same, filled with random ones.
WireArray random_on(Bench& b, GradientWire wire, const Shape& shape) {
  const WireArray filled = room_on(b, wire, shape);
  const Tensor gradients = b.device().allocate(Category::batch, DType::f32, {shape.elements()});
  draw<float>(b.device(), gradients);
  encode_gradients(b.stream(), wire, gradients, {filled.values.flat(0, shape.elements()), filled.scales});
  return filled;
}
double bytes_of(const WireArray& array) {
  return static_cast<double>(array.values.bytes() + (array.scales ? array.scales.bytes() : 0));
}

template <GradientWire wire> void gradients_encoded(benchmark::State& state) {
  Bench b(state);
  const std::int64_t n = total_elements();
  const Tensor gradients = b.device().allocate(Category::batch, DType::f32, {n});
  draw<float>(b.device(), gradients);
  const WireArray out = room_on(b, wire, {n});
  run_beside_copy(state, b, n, static_cast<double>(gradients.bytes()) + bytes_of(out),
                  [&] { encode_gradients(b.stream(), wire, gradients, out); });
}

template <GradientWire wire> void wire_sums_added(benchmark::State& state) {
  Bench b(state);
  const std::int64_t ranks = state.range(0), n = total_elements() / ranks;
  const SumTerms parts{random_on(b, wire, {n}), random_on(b, wire, {ranks - 1, n}), 1, 0, wire};
  const Tensor sum = b.device().allocate(Category::batch, DType::f32, {n});
  draw<float>(b.device(), sum);
  const double bytes = bytes_of(parts.own) + bytes_of(parts.others) + static_cast<double>(2 * sum.bytes());
  run_beside_copy(state, b, n * ranks, bytes, [&] { add_in_order(b.stream(), sum, parts); });
}

template <class T> void digests(benchmark::State& state) {
  Bench b(state);
  const Tensor x = b.random<T>({elements}), sum = test::on_device(b.device(), std::vector<std::uint64_t>(1));
  b.run({0, static_cast<double>(x.bytes())}, [&] { digest(b.stream(), sum.as<std::uint64_t>(), x, 0); });
}

void normals(benchmark::State& state) {
  Bench b(state);
  const Tensor x = b.empty<float>({elements / 16});
  b.run({0, static_cast<double>(x.bytes())},
        [&] { fill_normal(b.stream(), x, random_key(1, "bench", "x", 0), 0, 0.02); });
}

BENCHMARK(adamw<float>)->Apply(timed)->ArgName("runs")->Arg(1)->Arg(512);
BENCHMARK(average)->Apply(timed);
BENCHMARK(balance)->Apply(timed);
BENCHMARK(adamw<bf16>)->Apply(timed)->ArgName("runs")->Arg(1)->Arg(512);
BENCHMARK(muon)->Apply(timed)->ArgName("parts")->Arg(1)->Arg(512);
BENCHMARK(orthogonalisation)->Apply(timed)->ArgName("width")->Arg(256)->Arg(1024);
BENCHMARK(squares)->Apply(timed);
BENCHMARK(rank_sums)->Apply(timed)->ArgName("ranks")->Arg(2)->Arg(4)->Arg(6);
BENCHMARK(rank_sums_added)->Apply(timed)->ArgName("ranks")->Arg(2)->Arg(4)->Arg(6);
BENCHMARK(gradients_encoded<GradientWire::bf16>)->Apply(timed);
BENCHMARK(gradients_encoded<GradientWire::mxfp8>)->Apply(timed);
BENCHMARK(gradients_encoded<GradientWire::fp8_block>)->Apply(timed);
BENCHMARK(wire_sums_added<GradientWire::bf16>)->Apply(timed)->ArgName("ranks")->Arg(2)->Arg(4);
BENCHMARK(wire_sums_added<GradientWire::mxfp8>)->Apply(timed)->ArgName("ranks")->Arg(2)->Arg(4);
BENCHMARK(wire_sums_added<GradientWire::fp8_block>)->Apply(timed)->ArgName("ranks")->Arg(2)->Arg(4);
BENCHMARK(digests<float>)->Apply(timed);
BENCHMARK(digests<bf16>)->Apply(timed);
BENCHMARK(normals)->Apply(timed);

}  // namespace
}  // namespace tessera::bench
