#include <gtest/gtest.h>

#include <numeric>
#include <tuple>

#include "kernels/convert/convert.hpp"
#include "tests/support/finite_differences.hpp"
#include "tests/support/shown.hpp"
#include "tests/support/tiny_gpt.hpp"

namespace tessera::test {
namespace {

/// One layer [M,C] -> [M,N] with parameters and memory, and the scalar <r, y> (plus auxiliary losses) of its output.
class LayerBench {
 public:
  explicit LayerBench(const GptShape& s, std::int64_t sequences = 3)
      : shape(s),
        tokens(sequences * s.seq_len),
        arena(device.arena(Category::activations, 16 << 20)),
        sums(device.allocate(Category::batch, DType::u64, {sizeof(StepSums) / 8})),
        x(device.allocate(Category::activations, DType::f64, {tokens, s.hidden})) {}

  /// To be called when the layer has registered its parameters.
  void initialise(std::int64_t outputs) {
    params = std::make_unique<FlatParams>(device, registry, DType::f64);
    std::uint64_t seed = 100;
    for (ParamId id : params->ids()) {
      const ParamSpec& spec = registry[id];
      const double centre = spec.role == Role::norm ? 1 : 0;
      params->set(id, uniform<double>(spec.member_elements() * spec.members, ++seed, centre - 0.5, centre + 0.5));
    }
    upload_real(device, x, uniform<double>(x.elements(), 1));
    weights = uniform<double>(tokens * outputs, 2);
    y = poisoned(device, DType::f64, {tokens, outputs});
    dx = poisoned(device, DType::f64, x.shape);
    dy = on_device(device, y.shape, weights);
  }

  Call call() {
    Call c{{device.compute(), *params, params.get(), arena, static_cast<StepSums*>(sums.data)}, loss_scale, {}};
    if (shape.position == Position::rotary) {
      c.rotation = arena.temp(DType::f64, {shape.seq_len, shape.head_dim});
      rotary_table(device.compute(), c.rotation, shape.rope_base, shape.rope_scaling);
    }
    return c;
  }

  /// Checks the derivatives of the scalar by x and by all parameters. forward(call) fills y; backward(call) writes dx
  /// and adds to the gradients.
  template <class Forward, class Backward>
  void check(const Forward& forward, const Backward& backward) {
    const auto run = [&] {
      const Arena::Frame frame(arena);
      const StepSums zero;
      device.upload(device.compute(), sums, &zero);
      params->restart();
      forward(call());
      backward(call());
      return value();
    };
    run();
    const std::vector<double> gradient = download_real(device, dx), at = download_real(device, x);
    std::vector<std::vector<double>> gradients;
    for (ParamId id : params->ids()) {
      EXPECT_EQ(params->writes(id), 1) << registry[id].name;
      gradients.push_back(params->gradient(id));
    }
    EXPECT_TRUE(derivative_is(
        [&](const auto& moved) {
          upload_real(device, x, moved);
          return run();
        },
        at, gradient, 7));
    for (ParamId id : params->ids())
      EXPECT_TRUE(derivative_is(
          [&](const auto& moved) {
            params->set(id, moved);
            return run();
          },
          params->value(id), gradients[static_cast<std::size_t>(id.value)], 11))
          << registry[id].name;
  }

  /// The same for a layer with forward and backward as in call.hpp.
  template <class Layer>
  void check(const Layer& layer) {
    check(
        [&](const Call& c) {
          const Arena::Frame f(arena);
          layer.forward(c, x, layer.place(arena, tokens), y);
        },
        [&](const Call& c) {
          const Arena::Frame f(arena);
          const auto saved = layer.place(arena, tokens);
          layer.forward(c, x, saved);
          layer.backward(c, dx, dy, x, saved);
        });
  }

  GptShape shape;
  std::int64_t tokens;
  Device device;
  ParamRegistry registry;
  std::unique_ptr<FlatParams> params;
  Arena arena;
  Tensor sums, x, dx, y, dy;
  std::vector<double> weights;
  static constexpr double loss_scale = 0.03;

 private:
  double value() {
    StepSums s;
    device.download(device.compute(), &s, sums);
    const std::vector<double> out = download_real(device, y);
    const double z = shape.moe ? shape.moe->z_coef * s.z : 0;
    const double balance = shape.moe ? shape.moe->balance_coef * static_cast<double>(shape.seq_len) * s.balance : 0;
    return std::inner_product(out.begin(), out.end(), weights.begin(), loss_scale * (z + balance + s.loss));
  }
};

TEST(LayerGradients, Linear) {
  for (bool bias : {false, true})
    for (Accumulation how : {Accumulation::fused, Accumulation::unfused}) {
      LayerBench bench(tiny_shape());
      const Linear layer(bench.registry, "linear", {bench.shape.hidden, 17, 0.02, bias, how});
      bench.initialise(17);
      bench.check([&](const Call& c) { layer.forward(c, bench.y, bench.x); },
                  [&](const Call& c) { layer.backward(c, bench.dx, bench.dy, bench.x); });
    }
}

TEST(LayerGradients, NormAddsTheBranch) {
  for (Norm kind : {Norm::layer, Norm::rms}) {
    SCOPED_TRACE(shown(kind));
    GptShape shape = tiny_shape();
    shape.norm = kind;
    LayerBench bench(shape);
    const NormLayer layer(bench.registry, "norm", shape);
    bench.initialise(shape.hidden);
    EXPECT_EQ(bench.registry.size(), kind == Norm::layer ? 2 : 1);
    const Tensor branch = on_device(bench.device, bench.x.shape, uniform<double>(bench.x.elements(), 5));
    const Tensor sum = poisoned(bench.device, DType::f64, bench.x.shape);
    const NormLayer::Saved saved = layer.place(bench.arena, bench.tokens);
    bench.check(
        [&](const Call& c) {
          layer.forward(c, {bench.x, branch, sum}, saved);
          copy(c.stream, bench.y, saved.y);
        },
        [&](const Call& c) {
          clear(c.stream, bench.dx);
          layer.backward(c, bench.dx, bench.dy, sum, saved);
        });
  }
}

class AttentionGradients : public testing::TestWithParam<std::tuple<Position, std::int64_t, bool>> {};

TEST_P(AttentionGradients, MatchFiniteDifferences) {
  GptShape shape = tiny_shape();
  std::tie(shape.position, shape.kv_heads, shape.bias) = GetParam();
  LayerBench bench(shape);
  const Attention layer(bench.registry, "attention", shape);
  bench.initialise(shape.hidden);
  bench.check(layer);
}
INSTANTIATE_TEST_SUITE_P(PositionsHeadsBias, AttentionGradients,
                         testing::Combine(testing::Values(Position::learned, Position::rotary),
                                          testing::Values(1, 2, 4), testing::Bool()));

TEST(LayerGradients, Mlp) {
  for (const auto& [activation, name] : Names<Activation>::table)
    for (bool bias : {false, true}) {
      GptShape shape = tiny_shape();
      shape.activation = activation;
      shape.bias = bias;
      LayerBench bench(shape);
      const Mlp layer(bench.registry, "mlp", shape);
      bench.initialise(shape.hidden);
      bench.check(layer);
    }
}

void check_moe(Activation activation, const MoeShape& moe) {
  GptShape shape = with_experts(tiny_shape(), moe);
  shape.activation = activation;
  LayerBench bench(shape);
  const Moe layer(bench.registry, "moe", shape);
  bench.initialise(shape.hidden);
  bench.check(layer);
}

TEST(LayerGradients, MoeTopTwo) {
  for (ExpertWeights weights : {ExpertWeights::single, ExpertWeights::discrete})
    for (const auto& [activation, name] : Names<Activation>::table)
      for (bool renormalize : {false, true}) check_moe(activation, {5, 2, renormalize, weights, 0.3, 0.2});
}

TEST(LayerGradients, MoeTopOneAndAll) {
  check_moe(Activation::gelu, {4, 1, false, ExpertWeights::single, 0.3, 0.2});
  check_moe(Activation::gelu, {4, 1, false, ExpertWeights::discrete, 0, 0});
  check_moe(Activation::swiglu, {3, 3, true, ExpertWeights::single, 0.3, 0});
}

TEST(LayerGradients, MoeAuxiliaryLosses) {
  check_moe(Activation::gelu, {6, 2, true, ExpertWeights::single, 4, 0});
  check_moe(Activation::gelu, {6, 2, true, ExpertWeights::single, 0, 4});
}

TEST(LayerGradients, Block) {
  for (bool experts : {false, true}) {
    GptShape shape = tiny_shape();
    if (experts) shape = with_experts(shape, {4, 2, true, ExpertWeights::single, 0.1, 0.1});
    LayerBench bench(shape);
    const Block layer(bench.registry, 0, shape);
    bench.initialise(shape.hidden);
    const auto forward = [&](const Call& c, const Block::Saved& saved) {
      layer.forward(c, Residual::whole(bench.x), saved, bench.y);
      add(c.stream, bench.y, saved.middle, bench.y);
    };
    bench.check([&](const Call& c) { forward(c, layer.place(bench.arena, bench.tokens)); },
                [&](const Call& c) {
                  const Block::Saved saved = layer.place(bench.arena, bench.tokens);
                  forward(c, saved);
                  copy(c.stream, bench.dx, bench.dy);
                  layer.backward(c, bench.dx, bench.x, saved);
                });
  }
}

TEST(LayerGradients, Embedding) {
  for (Position position : {Position::learned, Position::rotary}) {
    SCOPED_TRACE(shown(position));
    GptShape shape = tiny_shape();
    shape.position = position;
    LayerBench bench(shape);
    const Embedding layer(bench.registry, shape);
    bench.initialise(shape.hidden);
    EXPECT_EQ(bench.registry.size(), position == Position::learned ? 2 : 1);
    std::vector<std::int32_t> tokens;  // some often, some never
    for (std::int64_t i = 0; i < bench.tokens; ++i)
      tokens.push_back(static_cast<std::int32_t>(i * i % shape.vocabulary));
    const Tensor ids = on_device(bench.device, tokens);
    bench.check([&](const Call& c) { layer.forward(c, bench.y, ids); },
                [&](const Call& c) {
                  layer.backward(c, bench.dy, ids);
                  clear(c.stream, bench.dx);
                });
  }
}

TEST(LayerGradients, HeadAndLoss) {
  for (bool tied : {false, true}) {
    GptShape shape = tiny_shape();
    shape.tied_head = tied;
    LayerBench bench(shape);
    // A tied head adds to the gradient of a matrix that it has not registered.
    const ParamId tokens = tied ? add_vocabulary(bench.registry, "embed.tokens", shape, Role::embedding) : ParamId{};
    const Head layer(bench.registry, shape, tokens);
    bench.initialise(1);
    clear(bench.device.compute(), bench.y);
    std::vector<std::int32_t> targets;
    for (std::int64_t i = 0; i < bench.tokens; ++i)
      targets.push_back(static_cast<std::int32_t>(i * 5 % shape.vocabulary));
    const MicroBatch batch{{}, on_device(bench.device, targets), 3, bench.loss_scale, 0, 0,
                           on_device(bench.device, std::vector{bench.loss_scale})};
    bench.check([](const Call&) {},
                [&](const Call& c) { layer.gradient(c, batch, bench.dx, Residual::whole(bench.x)); });
  }
}

}  // namespace
}  // namespace tessera::test
