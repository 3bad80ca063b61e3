#include "kernels/moe/moe.hpp"

#include "kernels/base/runtime.hpp"
#include "kernels/convert/convert.hpp"
#include "kernels/moe/peer_rows.hpp"
#include "tests/bench/timing.hpp"

namespace tessera::bench {
namespace {

/// Sizes; for a GPU those of a model of 12 layers x 1024 with 16 experts.
const bool large = Runtime::back_end() == "Cuda";
const RouterShape shape{.sequences = large ? 32 : 16, .length = large ? 1024 : 256, .experts = large ? 16 : 8,
                        .top_k = 2};
const std::int64_t hidden = large ? 1024 : 256;

Routing routing_of(Bench& b) {
  const std::int64_t m = shape.tokens(), e = shape.experts, k = shape.top_k;
  return {b.empty<float>({m, e}), b.empty<float>({m}), b.empty<std::int32_t>({m, k}), b.empty<float>({m, k}),
          b.empty<std::int32_t>({e + 1}), b.empty<std::int32_t>({m, k}), b.empty<std::int32_t>({shape.slots()}),
          b.empty<std::int32_t>({shape.sequences, e}),
          {},
          {}};
}

/// A routed batch and its rows.
template <class T> struct Routed {
  explicit Routed(Bench& b)
      : routing(routing_of(b)),
        logits(b.random<float>({shape.tokens(), shape.experts})),
        x(b.random<T>({shape.tokens(), hidden})),
        rows(b.random<T>({shape.slots(), hidden})) {
    route(b.stream(), b.arena(), shape, routing, logits);
  }
  Work moved(int times_x, int times_rows) const {
    return {0, static_cast<double>(times_x * x.bytes() + times_rows * rows.bytes())};
  }
  Routing routing;
  Tensor logits, x, rows;
};

void routes(benchmark::State& state) {
  Bench b(state);
  const Routed<float> r(b);
  b.run({}, [&] { route(b.stream(), b.arena(), shape, r.routing, r.logits); });
}

void routes_gradient(benchmark::State& state) {
  Bench b(state);
  const Routed<float> r(b);
  const Tensor dlogits = b.empty<float>(r.logits.shape), dweight = b.random<float>({shape.tokens(), shape.top_k});
  b.run({}, [&] { route_backward(b.stream(), shape, dlogits, dweight, r.routing, 1e-4, 1e-5); });
}

template <class T> void permute(benchmark::State& state) {
  Bench b(state);
  const Routed<T> r(b);
  b.run(r.moved(1, 1), [&] { permute_forward(b.stream(), r.rows, r.x, r.routing); });
}

template <class T> void permute_gradient(benchmark::State& state) {
  Bench b(state);
  const Routed<T> r(b);
  b.run(r.moved(1, 1), [&] { permute_backward(b.stream(), r.x, r.rows, r.routing); });
}

template <class T> void combine(benchmark::State& state) {
  Bench b(state);
  const Routed<T> r(b);
  b.run(r.moved(1, 1), [&] { combine_forward(b.stream(), r.x, r.rows, r.routing); });
}

template <class T> void combine_gradient(benchmark::State& state) {
  Bench b(state);
  const Routed<T> r(b);
  const Tensor d = b.empty<T>(r.rows.shape), dweight = b.empty<float>({shape.tokens(), shape.top_k});
  b.run(r.moved(1, 2), [&] { combine_backward(b.stream(), d, dweight, r.x, r.rows, r.routing); });
}

/// The memory of an expert group of one rank, which reaches itself.
template <class T> struct Reached : Routed<T> {
  explicit Reached(Bench& b) : Routed<T>(b) {
    const std::int64_t slots = shape.slots();
    const Tensor counts = b.empty<std::int32_t>({shape.experts});
    count_rows(b.stream(), counts, this->routing);
    peers = {b.empty<std::int32_t>({shape.experts}), b.empty<std::int64_t>({1})};
    find_shifts(b.stream(), {1, 0, shape.experts, 1, slots, slots}, peers.shifts, counts);
    clear(b.stream(), peers.distances);
  }
  PeerRows peers;
};

template <class T> void send(benchmark::State& state) {
  Bench b(state);
  const Reached<T> r(b);
  b.run(r.moved(1, 1), [&] { send_rows(b.stream(), r.rows, r.x, r.routing, r.peers, Weighted::no); });
}

template <class T> void fetch(benchmark::State& state) {
  Bench b(state);
  const Reached<T> r(b);
  const Tensor kept = b.empty<T>(r.rows.shape);
  b.run(r.moved(1, 2), [&] { fetch_answers(b.stream(), r.x, kept, r.rows, r.routing, r.peers); });
}

template <class T> void router(benchmark::State& state) {
  Bench b(state);
  const Tensor x = b.random<T>({shape.tokens(), hidden}), w = b.random<T>({shape.experts, hidden});
  const Tensor logits = b.empty<float>({shape.tokens(), shape.experts});
  b.run({2.0 * static_cast<double>(x.elements() * shape.experts)}, [&] { router_forward(b.stream(), logits, x, {w}); });
}

template <class T> void router_dx(benchmark::State& state) {
  Bench b(state);
  const Tensor dx = b.random<T>({shape.tokens(), hidden}), w = b.random<T>({shape.experts, hidden});
  const Tensor dlogits = b.random<float>({shape.tokens(), shape.experts});
  b.run({0, static_cast<double>(2 * dx.bytes() + dlogits.bytes())},
        [&] { router_input_gradient(b.stream(), dx, dlogits, w); });
}

template <class T> void router_dw(benchmark::State& state) {
  Bench b(state);
  const Tensor x = b.random<T>({shape.tokens(), hidden}), dlogits = b.random<float>({shape.tokens(), shape.experts});
  const Gradient dw{b.random<float>({shape.experts, hidden}), 1};
  b.run({0, static_cast<double>(x.bytes() + dlogits.bytes())},
        [&] { router_weight_gradient(b.stream(), b.arena(), dw, dlogits, x, Accumulation::fused); });
}

BENCHMARK(routes)->Apply(timed);
BENCHMARK(routes_gradient)->Apply(timed);
BENCHMARK(permute<float>)->Apply(timed);
BENCHMARK(permute<bf16>)->Apply(timed);
BENCHMARK(permute_gradient<float>)->Apply(timed);
BENCHMARK(permute_gradient<bf16>)->Apply(timed);
BENCHMARK(combine<float>)->Apply(timed);
BENCHMARK(combine<bf16>)->Apply(timed);
BENCHMARK(combine_gradient<float>)->Apply(timed);
BENCHMARK(combine_gradient<bf16>)->Apply(timed);
BENCHMARK(send<float>)->Apply(timed);
BENCHMARK(send<bf16>)->Apply(timed);
BENCHMARK(fetch<float>)->Apply(timed);
BENCHMARK(fetch<bf16>)->Apply(timed);
BENCHMARK(router<float>)->Apply(timed);
BENCHMARK(router<bf16>)->Apply(timed);
BENCHMARK(router_dx<float>)->Apply(timed);
BENCHMARK(router_dx<bf16>)->Apply(timed);
BENCHMARK(router_dw<float>)->Apply(timed);
BENCHMARK(router_dw<bf16>)->Apply(timed);

}  // namespace
}  // namespace tessera::bench
