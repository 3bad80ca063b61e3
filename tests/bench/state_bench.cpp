// What works on the flat shard: optimizer, norm, reduction in rank order, digest, initial values.
#include "kernels/digest/digest.hpp"
#include "kernels/optim/adamw.hpp"
#include "kernels/random/random.hpp"
#include "kernels/reduce/reduce.hpp"
#include "tests/bench/timing.hpp"

namespace tessera::bench {
namespace {

constexpr std::int64_t elements = std::int64_t{4} << 20;

/// Of as many runs of equal length, with and without decay by turns.
template <class M> void adamw(benchmark::State& state) {
  Bench b(state);
  const Tensor master = b.random<float>({elements}), gradient = b.random<float>({elements});
  const Tensor m = b.random<M>({elements}), v = b.random<M>({elements}, 0, 1);
  std::vector<AdamWRun> runs;
  for (std::int64_t r = 0, length = elements / state.range(0); r < state.range(0); ++r) {
    const auto part = [&](const Tensor& whole) { return whole.flat(r * length, length); };
    runs.push_back({part(master), part(m), part(v), part(gradient), r % 2 == 0 ? 0.1f : 0.0f});
  }
  AdamWTable table(runs);
  const Tensor memory = b.empty<std::uint8_t>({AdamWTable::bytes(state.range(0))});
  table.place(memory);
  b.device().upload(b.stream(), memory, table.image());
  const Tensor rate = b.random<float>({1}, 1e-4, 2e-4);
  const Tensor clip = test::on_device(b.device(), std::vector<std::uint8_t>(sizeof(ClipResult)));
  const Tensor clock = test::on_device(b.device(), std::vector<std::uint8_t>(sizeof(AdamWClock)));
  auto* const result = static_cast<ClipResult*>(clip.data);
  auto* const ticks = static_cast<AdamWClock*>(clock.data);
  const double bytes =
      2.0 * static_cast<double>(master.bytes() + m.bytes() + v.bytes()) + static_cast<double>(gradient.bytes());
  b.run({0, bytes}, [&] { adamw_step(b.stream(), {}, table, ticks, result, rate.as<float>()); });
}

void squares(benchmark::State& state) {
  Bench b(state);
  const Tensor x = b.random<float>({elements});
  const Tensor words = test::on_device(b.device(), std::vector<std::int64_t>(ExactSum::words));
  b.run({0, static_cast<double>(x.bytes())}, [&] { add_squares(b.stream(), words, x); });
}

void rank_sums(benchmark::State& state) {
  Bench b(state);
  const Tensor parts = b.random<float>({4, elements / 4}), sum = b.empty<float>({elements / 4});
  b.run({0, static_cast<double>(parts.bytes() + sum.bytes())}, [&] { sum_in_order(b.stream(), sum, parts); });
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
BENCHMARK(adamw<bf16>)->Apply(timed)->ArgName("runs")->Arg(1)->Arg(512);
BENCHMARK(squares)->Apply(timed);
BENCHMARK(rank_sums)->Apply(timed);
BENCHMARK(digests<float>)->Apply(timed);
BENCHMARK(digests<bf16>)->Apply(timed);
BENCHMARK(normals)->Apply(timed);

}  // namespace
}  // namespace tessera::bench
