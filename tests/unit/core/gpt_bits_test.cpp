#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/compare.hpp"
#include "tests/support/tiny_gpt.hpp"
#include "tests/support/tolerances.hpp"

namespace tessera::test {
namespace {

/// All results of a pass.
struct Outcome {
  StepSums sums;
  std::map<std::string, std::vector<double>> gradients;
};
Outcome outcome(TinyGpt& gpt) {
  Outcome o{gpt.gradient(), {}};
  o.gradients = gpt.canonical_gradients();
  return o;
}
Outcome outcome(const GptShape& shape) {
  TinyGpt gpt(shape, 3);
  return outcome(gpt);
}

void expect_same(const Outcome& a, const Outcome& b) {
  EXPECT_TRUE(same_bits(std::vector{a.sums.loss, a.sums.balance, a.sums.z},
                        std::vector{b.sums.loss, b.sums.balance, b.sums.z}));
  EXPECT_EQ(a.sums.logits, b.sums.logits);
  EXPECT_NE(a.sums.logits, 0u);
  ASSERT_EQ(a.gradients.size(), b.gradients.size());
  for (const auto& [name, gradient] : a.gradients) EXPECT_TRUE(same_bits(gradient, b.gradients.at(name))) << name;
}

GptShape dense(DType compute) {
  GptShape shape = tiny_shape();
  shape.position = Position::rotary;
  shape.compute = compute;
  return shape;
}
GptShape experts(DType compute) {
  GptShape shape = with_experts(dense(compute), {5, 2, true, ExpertWeights::single, 0.2, 0.1});
  shape.activation = Activation::swiglu;
  return shape;
}

TEST(GptBits, RecomputationChangesNothing) {
  const auto i = Keep::input, a = Keep::all;
  const KeepRules modes[] = {{i, a, a, a, a}, {a, i, a, a, a}, {a, a, i, a, a}, {a, a, a, i, a},
                             {i, i, i, i, a}, {a, a, a, a, i}, {i, i, i, i, i}};
  for (DType compute : {DType::f32, DType::bf16})
    for (GptShape shape : {dense(compute), experts(compute)}) {
      const Outcome none = outcome(shape);
      for (const KeepRules& mode : modes) {
        shape.keep = mode;
        expect_same(outcome(shape), none);
      }
    }
}

TEST(GptBits, RecomputationSavesMemory) {
  const auto peak = [](const GptShape& shape) {
    TinyGpt gpt(shape, 3);
    gpt.gradient();
    return gpt.arena.peak();
  };
  GptShape shape = dense(DType::f32);
  shape.layers = 6;
  const std::int64_t none = peak(shape);
  shape.keep.attention = Keep::input;
  const std::int64_t selective = peak(shape);
  shape.keep = {};
  shape.keep.block = Keep::input;
  EXPECT_LT(selective, none);
  EXPECT_LT(peak(shape), selective);
}

TEST(GptBits, SingleAndDiscreteExpertsAreTheSame) {
  for (DType compute : {DType::f32, DType::bf16})
    for (Accumulation how : {Accumulation::fused, Accumulation::unfused}) {
      GptShape shape = experts(compute);
      shape.accumulation = how;
      const Outcome single = outcome(shape);
      shape.moe->weights = ExpertWeights::discrete;
      expect_same(outcome(shape), single);
    }
}

TEST(GptBits, SingleAndDiscreteHaveTheSameMembersInTheSameOrder) {
  const auto members = [](ExpertWeights weights) {
    GptShape shape = experts(DType::f32);
    shape.moe->weights = weights;
    ParamRegistry registry;
    const Gpt model(registry, shape);
    std::vector<std::string> list;
    for (const ParamSpec& spec : registry.specs())
      for (int m = 0; m < spec.members; ++m)
        list.push_back(spec.canonical.name + " " + std::to_string(spec.canonical_index(m)));
    return list;
  };
  const auto single = members(ExpertWeights::single);
  EXPECT_EQ(single, members(ExpertWeights::discrete));
  EXPECT_EQ(single.size(), 1u + 2 * (2 + 4 + 2 + 1 + 2 * 5) + 3);
}

TEST(GptBits, UnfusedWeightGradientsAreRoundedBeforeTheyAreAdded) {
  GptShape shape = experts(DType::bf16);
  const auto all_bf16 = [](const std::vector<double>& g) {
    return std::all_of(g.begin(), g.end(),
                       [](double x) { return static_cast<double>(bf16(static_cast<float>(x))) == x; });
  };
  for (Accumulation how : {Accumulation::fused, Accumulation::unfused}) {
    shape.accumulation = how;
    TinyGpt gpt(shape, 3);
    gpt.gradient();
    for (ParamId id : gpt.params.ids()) {
      const Role role = gpt.registry[id].role;
      const bool product = role == Role::matrix || role == Role::expert || role == Role::router || role == Role::head;
      if (!product) continue;
      EXPECT_EQ(all_bf16(gpt.params.gradient(id)), how == Accumulation::unfused) << gpt.registry[id].name;
    }
  }
}

TEST(GptBits, EvaluationSeesTheLossOfTraining) {
  for (const GptShape& shape : {dense(DType::f32), experts(DType::bf16)}) {
    TinyGpt gpt(shape, 3);
    const StepSums training = gpt.gradient(), evaluation = gpt.evaluate();
    EXPECT_TRUE(same_bits(std::vector{training.loss}, std::vector{evaluation.loss}));
    EXPECT_GT(training.loss, 0);
    EXPECT_EQ(evaluation.balance, 0);  // these sums are made in backward only
    EXPECT_EQ(evaluation.z, 0);
  }
}

/// The loss of three sequences whose last `padding` tokens are padding, with a single id.
double loss_before_padding(TinyGpt& gpt, std::int64_t padding, std::int32_t token) {
  gpt.set_batch("0", 0);
  gpt.batch.padding = padding;
  const std::int64_t real = 3 * gpt.model.shape().seq_len - padding;
  for (Tensor* tokens : {&gpt.batch.ids, &gpt.batch.targets}) {
    auto values = on_host<std::int32_t>(gpt.device, *tokens);
    std::fill(values.begin() + real, values.end(), token);
    *tokens = on_device(gpt.device, values);
  }
  return gpt.evaluate().loss;
}

// The padding of an evaluation's last micro-batch must not change its loss.
TEST(GptBits, PaddingCountsInNoSumAndChangesNoBit) {
  for (GptShape shape : {dense(DType::f32), dense(DType::bf16), experts(DType::f32), experts(DType::bf16)})
    for (const std::int64_t rows_at_once : {1000, 5}) {  // all; pieces that end in padding
      shape.logits_at_once = rows_at_once * shape.padded_vocabulary();
      TinyGpt gpt(shape, 3);
      const double whole = gpt.evaluate().loss;
      EXPECT_TRUE(same_bits(std::vector{loss_before_padding(gpt, 0, 0)}, std::vector{whole}));
      const std::int64_t length = gpt.model.shape().seq_len;
      double before = whole;
      // Whole sequences, and parts of one.
      for (const std::int64_t padding : {std::int64_t{1}, length - 1, length, length + 3, 2 * length, 3 * length - 1}) {
        const double loss = loss_before_padding(gpt, padding, 0);
        EXPECT_TRUE(same_bits(std::vector{loss_before_padding(gpt, padding, 7)}, std::vector{loss})) << padding;
        EXPECT_LT(0, loss);
        EXPECT_LT(loss, before) << padding;
        before = loss;
      }
      EXPECT_EQ(loss_before_padding(gpt, 3 * length, 0), 0);
      gpt.batch.padding = 1;
      EXPECT_THROW(gpt.gradient(), Error) << "training has no padding";
    }
}

TEST(GptBits, MicroBatchesAddUp) {
  GptShape shape = experts(DType::f64);
  TinyGpt gpt(shape, 2);
  const Outcome first = outcome(gpt);
  gpt.set_batch("0", 1);
  const Outcome second = outcome(gpt);
  EXPECT_NE(first.sums.logits, second.sums.logits);
  gpt.set_batch("0", 0);
  gpt.gradient();
  gpt.set_batch("0", 1);
  gpt.add_gradient();
  const auto both = gpt.canonical_gradients();
  for (const auto& [name, sum] : both) {
    std::vector<double> expected = first.gradients.at(name);
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += second.gradients.at(name)[i];
    EXPECT_TRUE(near(sum, expected, tolerance<double>)) << name;
  }
}

TEST(GptBits, LogitsAreTracedByTheirPlaceInTheGlobalBatch) {
  TinyGpt gpt(dense(DType::f32), 2);
  const StepSums here = gpt.gradient();
  gpt.batch.first_sequence = 5;
  const StepSums there = gpt.gradient();
  EXPECT_NE(here.logits, there.logits);
  EXPECT_TRUE(same_bits(std::vector{here.loss}, std::vector{there.loss}));
}

TEST(GptBits, TheHeadInPiecesIsTheHead) {
  GptShape shape = dense(DType::f32);
  const Outcome whole = outcome(shape);
  shape.logits_at_once = 4 * shape.padded_vocabulary();
  const Outcome pieces = outcome(shape);
  EXPECT_TRUE(near(std::vector{pieces.sums.loss}, std::vector{whole.sums.loss}, tolerances::reordered));
  for (const auto& [name, gradient] : whole.gradients)
    EXPECT_TRUE(near(pieces.gradients.at(name), gradient, tolerances::reordered)) << name;
}

TEST(GptBits, NextTokenDependsOnThePastAlone) {
  TinyGpt gpt(experts(DType::f32), 1);
  const std::int64_t vocabulary = gpt.model.shape().vocabulary;
  const std::vector<double> before = gpt.next_logits(0, 3);
  EXPECT_EQ(static_cast<std::int64_t>(before.size()), vocabulary);
  auto ids = on_host<std::int32_t>(gpt.device, gpt.batch.ids);
  for (std::size_t t = 4; t < ids.size(); ++t) ids[t] = static_cast<std::int32_t>((ids[t] + 1) % vocabulary);
  gpt.device.upload(gpt.device.compute(), gpt.batch.ids, ids.data());
  EXPECT_TRUE(same_bits(gpt.next_logits(0, 3), before));
  EXPECT_FALSE(same_bits(gpt.next_logits(0, 4), before));
}

TEST(GptBits, ADryPassIsTheStepWithoutItsWork) {
  for (const GptShape& shape : {dense(DType::bf16), experts(DType::f32)}) {
    TinyGpt gpt(shape, 3);
    gpt.gradient();
    Device measuring(Device::Kind::measuring);
    Arena arena;
    FlatParams params(measuring, gpt.registry, shape.compute);
    StepSums* nowhere = reinterpret_cast<StepSums*>(Arena::alignment);
    gpt.model.gradient({measuring.compute(), params, &params, arena, nowhere, &nowhere->logits}, gpt.batch);
    EXPECT_EQ(params.used(), gpt.params.used());
    EXPECT_EQ(params.order_written(), gpt.params.order_written());
    EXPECT_EQ(arena.peak(), gpt.arena.peak());
    EXPECT_GT(measuring.tape().flops, 0);
  }
}

TEST(GptBits, TheOrderIsThatOfTheModel) {
  GptShape shape = experts(DType::f32);
  shape.tied_head = true;
  shape.position = Position::learned;
  TinyGpt gpt(shape, 1);
  gpt.gradient();
  std::vector<std::string> first_use;
  for (const std::string& name : gpt.params.used())
    if (std::find(first_use.begin(), first_use.end(), name) == first_use.end()) first_use.push_back(name);
  std::vector<std::string> registered;
  for (const ParamSpec& spec : gpt.registry.specs()) registered.push_back(spec.name);
  EXPECT_EQ(first_use, registered);
  // A tied embedding gets contributions from the head, at the beginning of backward, and from the tokens, at its end.
  const auto& written = gpt.params.order_written();
  EXPECT_EQ(written.front(), "embed.tokens");
  EXPECT_EQ(written.back(), "embed.tokens");
  EXPECT_EQ(std::count(written.begin(), written.end(), "embed.tokens"), 2);
}

TEST(GptBits, RefusesShapesThatNoKernelTakes) {
  const auto build = [](const GptShape& shape) {
    ParamRegistry registry;
    Gpt(registry, shape);
  };
  GptShape shape = tiny_shape();
  shape.kv_heads = 3;
  EXPECT_THROW(build(shape), Error);
  shape = dense(DType::f32);
  shape.head_dim = 5;
  EXPECT_THROW(build(shape), Error);
  EXPECT_THROW(build(with_experts(tiny_shape(), {4, 5, true, ExpertWeights::single, 0, 0})), Error);
}

}  // namespace
}  // namespace tessera::test
