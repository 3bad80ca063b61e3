// Times the layers between matrix products. They are memory-bound: compare bytes/s with those of copy.
#include "kernels/activation/activation.hpp"
#include "kernels/base/runtime.hpp"
#include "kernels/convert/convert.hpp"
#include "kernels/embedding/embedding.hpp"
#include "kernels/loss/loss.hpp"
#include "kernels/normalize/normalize.hpp"
#include "kernels/sort/sort.hpp"
#include "tests/bench/timing.hpp"

namespace tessera::bench {
namespace {

/// Sizes for a GPU: those of the largest GPT-2, and as many logits as the head makes at once.
const bool large = Runtime::back_end() == "Cuda";
const std::int64_t tokens = large ? 16384 : 4096, hidden = large ? 1600 : 512, vocabulary = large ? 50304 : 256;
const std::int64_t logits_at_once = std::int64_t{1} << (large ? 28 : 20);

Work moved(std::initializer_list<Tensor> tensors) {
  Work work;
  for (const Tensor& t : tensors) work.bytes += static_cast<double>(t.bytes());
  return work;
}

template <class T> void copies(benchmark::State& state) {
  Bench b(state);
  const Tensor from = b.random<T>({tokens, hidden}), to = b.empty<T>(from.shape);
  b.run(moved({from, to}), [&] { copy(b.stream(), to, from); });
}

void rounding(benchmark::State& state) {
  Bench b(state);
  const Tensor from = b.random<float>({tokens, hidden}), to = b.empty<bf16>(from.shape);
  b.run(moved({from, to}), [&] { convert(b.stream(), to, from); });
}

/// Conversion of the same bytes as 64 pairs in one launch.
void rounding_many(benchmark::State& state) {
  constexpr std::int64_t pairs = 64;
  Bench b(state);
  const Tensor from = b.random<float>({tokens, hidden}), to = b.empty<bf16>(from.shape);
  const std::int64_t each = from.elements() / pairs;
  std::vector<ConvertTable::Pair> list;
  for (std::int64_t i = 0; i < pairs; ++i) list.push_back({to.flat(i * each, each), from.flat(i * each, each)});
  ConvertTable table(list);
  table.bind(b.device().allocate(Category::staging, DType::u8, {table.bytes()}));
  b.device().upload(b.stream(), table);
  b.run(moved({from, to}), [&] { convert(b.stream(), table, 0, table.pairs()); });
}

template <class T> void sums(benchmark::State& state) {
  Bench b(state);
  const Tensor x = b.random<T>({tokens, hidden}), y = b.random<T>(x.shape), z = b.empty<T>(x.shape);
  b.run(moved({x, y, z}), [&] { add(b.stream(), z, x, y); });
}

/// Rows of swiglu and their length; on a GPU those of an MoE model's slots.
const std::int64_t slots = large ? 65536 : tokens, inner = large ? 2048 : hidden;

template <class T> void swiglu(benchmark::State& state) {
  Bench b(state);
  const Tensor gate_up = b.random<T>({slots, 2 * inner}), y = b.empty<T>({slots, inner});
  b.run(moved({gate_up, y}), [&] { swiglu_forward(b.stream(), y, gate_up); });
}

template <class T> void swiglu_gradient(benchmark::State& state) {
  Bench b(state);
  const Tensor gate_up = b.random<T>({slots, 2 * inner}), dy = b.random<T>({slots, inner}),
               d = b.empty<T>(gate_up.shape);
  b.run(moved({gate_up, dy, d}), [&] { swiglu_backward(b.stream(), d, dy, gate_up); });
}

template <class T> void gelu_gradient(benchmark::State& state) {
  Bench b(state);
  const Tensor pre = b.random<T>({tokens, hidden}), dy = b.random<T>(pre.shape), d = b.empty<T>(pre.shape);
  b.run(moved({pre, dy, d}), [&] { gelu_backward(b.stream(), d, dy, pre); });
}

template <class T> struct Normed {
  explicit Normed(Bench& b)
      : x(b.random<T>({tokens, hidden})),
        branch(b.random<T>(x.shape)),
        residual(b.empty<T>(x.shape)),
        y(b.empty<T>(x.shape)),
        weight(b.random<T>({hidden})),
        mean(b.empty<Accumulator<T>>({tokens})),
        rstd(b.empty<Accumulator<T>>({tokens})) {}
  void forward(Bench& b) const {
    norm_forward(b.stream(), Norm::rms,
                 {.y = y, .residual_out = residual, .rstd = rstd, .x = x, .branch = branch, .weight = weight});
  }
  NormBackward backward(const Tensor& dx, const Tensor& dy) const {
    return {.dx = dx, .dy = dy, .x = residual, .rstd = rstd, .weight = weight};
  }
  Tensor x, branch, residual, y, weight, mean, rstd;
};

template <class T> void rms_norm(benchmark::State& state) {
  Bench b(state);
  const Normed<T> n(b);
  b.run(moved({n.x, n.branch, n.residual, n.y}), [&] { n.forward(b); });
}

template <class T> void rms_norm_gradient(benchmark::State& state) {
  Bench b(state);
  const Normed<T> n(b);
  n.forward(b);
  const Tensor dx = b.random<T>(n.x.shape), dy = b.random<T>(n.x.shape);
  b.run(moved({dx, dx, dy, n.residual}),
        [&] { norm_backward(b.stream(), Norm::rms, n.backward(dx, dy)); });
}

template <class T> void rms_norm_weight_gradient(benchmark::State& state) {
  Bench b(state);
  const Normed<T> n(b);
  n.forward(b);
  const Tensor dy = b.random<T>(n.x.shape);
  const Gradient dw{b.random<float>({hidden}), 1};
  b.run(moved({dy, n.residual}),
        [&] { norm_weight_gradient(b.stream(), b.arena(), Norm::rms, dw, {}, n.backward({}, dy)); });
}

/// Both gradients in one pass.
template <class T> void rms_norm_gradients(benchmark::State& state) {
  Bench b(state);
  const Normed<T> n(b);
  n.forward(b);
  const Tensor dx = b.random<T>(n.x.shape), dy = b.random<T>(n.x.shape);
  const Gradient dw{b.random<float>({hidden}), 1};
  b.run(moved({dx, dx, dy, n.residual}), [&] {
    norm_gradients(b.stream(), b.arena(), Norm::rms, dw, {}, n.backward(dx, dy));
  });
}

template <class T> void embedding(benchmark::State& state) {
  Bench b(state);
  const Tensor ids = b.indices({tokens}, vocabulary), table = b.random<T>({vocabulary, hidden}),
               y = b.empty<T>({tokens, hidden});
  b.run(moved({y, y}), [&] { embedding_forward(b.stream(), y, ids, {table, {}}); });
}

template <class T> void embedding_gradient(benchmark::State& state) {
  Bench b(state);
  const Tensor ids = b.indices({tokens}, vocabulary), dy = b.random<T>({tokens, hidden});
  const Gradient table{b.random<float>({vocabulary, hidden}), 1};
  b.run(moved({dy, table.sum, table.sum}), [&] { embedding_token_gradient(b.stream(), b.arena(), table, ids, dy); });
}

void sorting(benchmark::State& state) {
  Bench b(state);
  const Tensor keys = b.indices({tokens}, vocabulary), order = b.empty<std::int32_t>({tokens}),
               offsets = b.empty<std::int32_t>({vocabulary + 1});
  b.run(moved({keys, order}), [&] { sort_by_key(b.stream(), b.arena(), order, offsets, keys); });
}

/// Of the vocabulary of GPT-2, Llama 3 or Qwen 2.5.
template <class T> void loss(benchmark::State& state) {
  Bench b(state);
  const std::int64_t words = state.range(0), rows = logits_at_once / words;
  const Tensor logits = b.random<T>({rows, words}), d = b.empty<T>(logits.shape), targets = b.indices({rows}, words);
  const Tensor sum = b.random<double>({1}), scale = b.random<double>({1});
  b.run(moved({logits, d}),
        [&] { cross_entropy(b.stream(), b.arena(), sum.as<double>(), d, logits, targets, words, scale); });
}
void vocabularies(benchmark::internal::Benchmark* loss) {
  timed(loss);
  for (const std::int64_t words : {50304, 128256, 151936}) loss->Arg(words);
}

#define BOTH_TYPES(f)                \
  BENCHMARK(f<float>)->Apply(timed); \
  BENCHMARK(f<bf16>)->Apply(timed)
BOTH_TYPES(copies);
BENCHMARK(rounding)->Apply(timed);
BENCHMARK(rounding_many)->Apply(timed);
BOTH_TYPES(sums);
BOTH_TYPES(swiglu);
BOTH_TYPES(swiglu_gradient);
BOTH_TYPES(gelu_gradient);
BOTH_TYPES(rms_norm);
BOTH_TYPES(rms_norm_gradient);
BOTH_TYPES(rms_norm_weight_gradient);
BOTH_TYPES(rms_norm_gradients);
BOTH_TYPES(embedding);
BOTH_TYPES(embedding_gradient);
BENCHMARK(sorting)->Apply(timed);
BENCHMARK(loss<float>)->Apply(vocabularies);
BENCHMARK(loss<bf16>)->Apply(vocabularies);

}  // namespace
}  // namespace tessera::bench
