#include <algorithm>

#include "kernels/attention/attention.hpp"
#include "kernels/attention/head_norm.hpp"

#include "kernels/base/runtime.hpp"
#include "tests/bench/timing.hpp"

namespace tessera::bench {
namespace {

constexpr AttentionShape shape{.sequences = 8, .length = 256, .heads = 4, .kv_heads = 4, .head_dim = 64};
constexpr std::int64_t tokens = shape.sequences * shape.length, width = shape.heads * shape.head_dim;

/// Two products over the lower triangle.
constexpr double causal_flops = 2.0 * 2.0 * tokens * (shape.length / 2.0) * width;

template <class T> struct Tensors {
  explicit Tensors(Bench& b)
      : qkv(b.random<T>({tokens, shape.columns()})), out(b.empty<T>({tokens, width})),
        lse(b.empty<Accumulator<T>>({shape.sequences, shape.heads, shape.length})) {}
  Tensor qkv, out, lse;
};

template <class T> void forward(benchmark::State& state) {
  Bench b(state);
  const Tensors<T> t(b);
  b.run({causal_flops}, [&] { attention_forward(b.stream(), b.arena(), shape, {t.out, t.lse, t.qkv}); });
}

template <class T> void backward(benchmark::State& state) {
  Bench b(state);
  const Tensors<T> t(b);
  const Tensor dout = b.random<T>(t.out.shape), dqkv = b.empty<T>(t.qkv.shape);
  attention_forward(b.stream(), b.arena(), shape, {t.out, t.lse, t.qkv});
  b.run({2.5 * causal_flops},
        [&] { attention_backward(b.stream(), b.arena(), shape, {t.out, t.lse, t.qkv}, dqkv, dout); });
}

/// Attention in bf16, as models in inputs/bench have it: sequences (on a host one, of 1024 tokens at most), heads, key
/// heads, columns of a head, tokens.
struct Long {
  explicit Long(benchmark::State& state)
      : b(state), s{gpu ? state.range(0) : 1, gpu ? state.range(4) : std::min<std::int64_t>(1024, state.range(4)),
                    state.range(1), state.range(2), state.range(3)},
        qkv(b.random<bf16>({s.sequences * s.length, s.columns()}, -2, 2)),
        dout(b.random<bf16>({s.sequences * s.length, s.heads * s.head_dim})), out(b.empty<bf16>(dout.shape)),
        dqkv(b.empty<bf16>(qkv.shape)), lse(b.empty<float>({s.sequences, s.heads, s.length})) {}
  void forward() { attention_forward(b.stream(), b.arena(), s, {out, lse, qkv}); }
  void backward() { attention_backward(b.stream(), b.arena(), s, {out, lse, qkv}, dqkv, dout); }
  /// `products` of a query's row with a key's, for each visible pair.
  template <class F> void run(int products, const F& f) {
    const int calls = gpu ? 10 : 1;  // between two waits of the host
    const std::int64_t pairs = s.length * (s.length + 1) / 2 * s.sequences * s.heads;
    b.run({calls * 2.0 * products * static_cast<double>(pairs * s.head_dim)}, [&] {
      for (int i = 0; i < calls; ++i) f();
    });
  }

  const bool gpu = Runtime::back_end() == "Cuda";
  Bench b;
  AttentionShape s;
  Tensor qkv, dout, out, dqkv, lse;
};

void long_forward(benchmark::State& state) {
  Long l(state);
  l.run(2, [&] { l.forward(); });
}
void long_backward(benchmark::State& state) {
  Long l(state);
  l.forward();
  l.run(5, [&] { l.backward(); });
}
void long_shapes(benchmark::internal::Benchmark* b) {
  timed(b);
  b->Args({64, 12, 12, 64, 1024})->Args({32, 16, 16, 64, 1024})->Args({16, 20, 20, 64, 1024});
  b->Args({16, 25, 25, 64, 1024})->Args({32, 16, 8, 64, 1024});
  b->Args({16, 12, 2, 128, 1024})->Args({1, 32, 8, 128, 8192})->Args({1, 8, 2, 128, 32768});
}

template <class T> void turn(benchmark::State& state) {
  Bench b(state);
  const AttentionShape wide = Runtime::back_end() == "Cuda" ? AttentionShape{32, 1024, 16, 8, 64} : shape;
  const Tensor qkv = b.random<T>({wide.sequences * wide.length, wide.columns()});
  const Tensor table = b.empty<Accumulator<T>>({wide.length, wide.head_dim});
  rotary_table(b.stream(), table, 10000);
  const double turned = static_cast<double>(wide.heads + wide.kv_heads) / (wide.heads + 2 * wide.kv_heads);
  b.run({0, 2 * turned * static_cast<double>(qkv.bytes())},
        [&] { rotary(b.stream(), wide, qkv, table, Rotation::forward); });
}

/// attention_extend of one token: the last of a sequence as long as the batch, against the cache of those before.
template <class T> void extend(benchmark::State& state) {
  Bench b(state);
  constexpr AttentionShape one{1, 1, shape.heads, shape.kv_heads, shape.head_dim};
  const Tensor cache = b.random<T>({tokens, 2 * width}), qkv = b.random<T>({1, one.columns()});
  const Tensor out = b.empty<T>({1, width});
  b.run({0, static_cast<double>(cache.bytes())},
        [&] { attention_extend(b.stream(), b.arena(), one, out, cache, qkv, tokens - 1); });
}

template <class T> void head_norm(benchmark::State& state) {
  Bench b(state);
  const Tensors<T> t(b);
  const Tensor y = b.empty<T>(t.qkv.shape), weight = b.random<T>({shape.head_dim});
  const Tensor rstd = b.empty<Accumulator<T>>({tokens, shape.heads + shape.kv_heads});
  b.run({0, 2.0 * static_cast<double>(t.qkv.bytes())},
        [&] { head_norm_forward(b.stream(), shape, {rstd, t.qkv, weight, weight}, y); });
}

BENCHMARK(extend<float>)->Apply(timed);
BENCHMARK(extend<bf16>)->Apply(timed);
BENCHMARK(head_norm<float>)->Apply(timed);
BENCHMARK(head_norm<bf16>)->Apply(timed);
BENCHMARK(forward<float>)->Apply(timed);
BENCHMARK(forward<bf16>)->Apply(timed);
BENCHMARK(backward<float>)->Apply(timed);
BENCHMARK(backward<bf16>)->Apply(timed);
BENCHMARK(long_forward)->Apply(long_shapes);
BENCHMARK(long_backward)->Apply(long_shapes);
BENCHMARK(turn<float>)->Apply(timed);
BENCHMARK(turn<bf16>)->Apply(timed);

}  // namespace
}  // namespace tessera::bench
