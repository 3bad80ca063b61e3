#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "core/config/config.hpp"
#include "core/model/gpt.hpp"

namespace tessera {
namespace {

RunConfig small() {
  RunConfig config;
  config.model.layers = 3;
  config.model.hidden = 64;
  config.model.heads = 4;
  config.model.seq_len = 16;
  return config;
}
GptShape shape_of(RunConfig config) {
  derive(config);
  return GptShape::from(config);
}

TEST(GptShape, FollowsTheDeck) {
  RunConfig config = small();
  config.model.kv_heads = 2;
  config.model.activation = Activation::swiglu;
  config.model.norm = Norm::rms;
  config.model.position = Position::rotary;
  config.model.rope_base = 500;
  config.model.tied_head = true;
  config.precision.compute = Compute::fp32;
  config.precision.fuse_wgrad = false;
  config.model.moe = MoeConfig{};
  config.model.moe->experts = 8;
  config.model.moe->top_k = 2;
  config.model.moe->weights = ExpertWeights::discrete;
  config.model.moe->balance_coef = 0.25;
  config.model.moe->z_coef = 0.5;
  const GptShape shape = shape_of(config);
  EXPECT_EQ(shape.layers, 3);
  EXPECT_EQ(shape.kv_heads, 2);
  EXPECT_EQ(shape.head_dim, 16);
  EXPECT_EQ(shape.ffn, 256);  // 8/3 of 64, rounded up to 128
  EXPECT_EQ(shape.vocabulary, 256);
  EXPECT_EQ(shape.norm, Norm::rms);
  EXPECT_EQ(shape.position, Position::rotary);
  EXPECT_EQ(shape.rope_base, 500);
  EXPECT_EQ(shape.activation, Activation::swiglu);
  EXPECT_FALSE(shape.bias);
  EXPECT_TRUE(shape.tied_head);
  EXPECT_EQ(shape.compute, DType::f32);
  EXPECT_EQ(shape.accumulation, Accumulation::unfused);
  ASSERT_TRUE(shape.moe);
  EXPECT_EQ(shape.moe->ffn, 256);
  EXPECT_EQ(shape.moe->experts, 8);
  EXPECT_EQ(shape.moe->top_k, 2);
  EXPECT_TRUE(shape.moe->renormalize);
  EXPECT_EQ(shape.moe->weights, ExpertWeights::discrete);
  EXPECT_EQ(shape.moe->balance_coef, 0.25);
  EXPECT_EQ(shape.moe->z_coef, 0.5);
}

TEST(GptShape, RecomputationKeepsInputs) {
  RunConfig config = small();
  EXPECT_EQ(shape_of(config).compute, DType::bf16);
  EXPECT_EQ(shape_of(config).keep.block, Keep::all);
  config.recompute.mode = RecomputeMode::full;
  EXPECT_EQ(shape_of(config).keep.block, Keep::input);
  EXPECT_EQ(shape_of(config).keep.attention, Keep::all);
  config.recompute.mode = RecomputeMode::selective;
  config.recompute.modules = std::vector{RecomputeModule::mlp, RecomputeModule::norm};
  const KeepRules keep = shape_of(config).keep;
  EXPECT_EQ(keep.mlp, Keep::input);
  EXPECT_EQ(keep.norm, Keep::input);
  EXPECT_EQ(keep.attention, Keep::all);
  EXPECT_EQ(keep.moe, Keep::all);
  EXPECT_EQ(keep.block, Keep::all);
  EXPECT_EQ(keep.activation, Keep::all);
  EXPECT_EQ(keep.codes, Keep::all);
  EXPECT_FALSE(keep.makes_activation_again(true));
  config.recompute.modules = std::vector{RecomputeModule::codes};
  EXPECT_EQ(shape_of(config).keep.codes, Keep::input);
  EXPECT_EQ(shape_of(config).keep.mlp, Keep::all);
  EXPECT_TRUE(shape_of(config).keep.makes_activation_again(true));
  EXPECT_FALSE(shape_of(config).keep.makes_activation_again(false));
  config.recompute.modules = std::vector{RecomputeModule::activation};
  EXPECT_TRUE(shape_of(config).keep.makes_activation_again(true));
  EXPECT_TRUE(shape_of(config).keep.makes_activation_again(false));
  EXPECT_EQ(shape_of(config).keep.codes, Keep::all);
}

TEST(GptShape, OfAMixtureFollowsTheDeck) {
  RunConfig config = small();
  config.model.layers = 7;
  MoeConfig& given = config.model.moe.emplace();
  given.experts = 8;
  given.top_k = 2;
  given.ffn = 24;
  given.first_dense = 2;
  given.every = 2;
  given.shared_ffn = 40;
  given.shared_gate = true;
  given.scores = Scores::sigmoid;
  given.logits = RouterLogits::bf16;
  given.scale = 2.5;
  given.groups = 4;
  given.top_groups = 2;
  given.bias = true;
  given.balance_over = BalanceOver::batch;
  given.balance_coef = 0.25;
  given.z_coef = 0.5;
  const GptShape shape = shape_of(config);
  ASSERT_TRUE(shape.moe);
  const MoeShape& moe = *shape.moe;
  EXPECT_EQ(moe.ffn, 24);
  EXPECT_EQ(moe.shared_ffn, 40);
  EXPECT_TRUE(moe.shared_gate);
  EXPECT_EQ(moe.rule.scores, Scores::sigmoid);
  EXPECT_EQ(moe.rule.logits, DType::bf16);
  EXPECT_EQ(moe.rule.scale, 2.5);
  EXPECT_EQ(moe.rule.groups, 4);
  EXPECT_EQ(moe.rule.top_groups, 2);
  ParamRegistry registry;
  const Gpt model(registry, shape);
  std::map<std::string, ParamSpec> specs;
  for (const ParamSpec& spec : registry.specs()) specs.emplace(spec.name, spec);
  for (int i = 0; i < 7; ++i) {
    const std::string layer = "layers." + std::to_string(i);
    const bool mixture = i == 3 || i == 5;
    EXPECT_EQ(specs.contains(layer + ".moe.router.weight"), mixture) << i;
    EXPECT_EQ(specs.contains(layer + ".mlp.up.bias"), !mixture) << i;
  }
  EXPECT_EQ(specs.at("layers.3.moe.experts.up.weight").member, (Shape{24, 64}));
  EXPECT_EQ(specs.at("layers.3.moe.shared.up.weight").member, (Shape{40, 64}));
  EXPECT_EQ(specs.at("layers.3.moe.shared.down.weight").role, Role::matrix);
  EXPECT_FALSE(specs.contains("layers.3.moe.shared.up.bias"));
  EXPECT_EQ(specs.at("layers.3.moe.shared.gate.weight").role, Role::router);
  const ParamSpec& bias = specs.at("layers.3.moe.router.bias");
  EXPECT_EQ(bias.member, (Shape{8}));
  EXPECT_EQ(bias.role, Role::router_bias);
  EXPECT_EQ(bias.start.kind, Start::Kind::zero);
  EXPECT_EQ(bias.format.plain, DType::f32) << "also where weights are bf16";
  EXPECT_FALSE(bias.format.codes);
  EXPECT_EQ(specs.at("layers.5.moe.router.load").role, Role::router_load);
}

TEST(GptShape, ParametersStartAsTheModelSays) {
  RunConfig config = small();
  config.model.vocab = 200;
  ParamRegistry registry;
  const Gpt model(registry, shape_of(config));
  std::map<std::string, ParamSpec> specs;
  for (const ParamSpec& spec : registry.specs()) specs.emplace(spec.name, spec);
  const auto deviation = [&](const std::string& name) { return specs.at(name).start.deviation; };
  EXPECT_EQ(deviation("embed.tokens"), 0.02);
  EXPECT_EQ(deviation("embed.positions"), 0.02);
  EXPECT_EQ(deviation("head.weight"), 0.02);
  EXPECT_EQ(deviation("layers.2.attention.qkv.weight"), 0.02);
  EXPECT_EQ(deviation("layers.2.mlp.up.weight"), 0.02);
  EXPECT_DOUBLE_EQ(deviation("layers.2.attention.out.weight"), 0.02 / std::sqrt(6.0));
  EXPECT_DOUBLE_EQ(deviation("layers.2.mlp.down.weight"), 0.02 / std::sqrt(6.0));
  EXPECT_EQ(specs.at("final_norm.weight").start.kind, Start::Kind::one);
  EXPECT_EQ(specs.at("final_norm.bias").start.kind, Start::Kind::zero);
  EXPECT_EQ(specs.at("layers.0.attention.qkv.bias").start.kind, Start::Kind::zero);
  EXPECT_EQ(specs.at("head.weight").member, (Shape{256, 64}));
  EXPECT_EQ(specs.at("head.weight").canonical.shape, (Shape{200, 64}));
}

}  // namespace
}  // namespace tessera
