#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/finite_differences.hpp"
#include "tests/support/shown.hpp"
#include "tests/support/tiny_gpt.hpp"

namespace tessera::test {
namespace {

/// Gradients of every parameter of the model against finite differences, in fp64.
void check(const GptShape& shape) {
  TinyGpt gpt(shape, 2);
  gpt.gradient();
  std::vector<std::vector<double>> gradients;
  for (ParamId id : gpt.params.ids()) gradients.push_back(gpt.params.gradient(id));
  for (ParamId id : gpt.params.ids()) {
    if (is_counted(gpt.registry[id].role)) continue;
    const auto objective = [&](const std::vector<double>& moved) {
      gpt.params.set(id, moved);
      return gpt.objective(gpt.gradient());
    };
    EXPECT_TRUE(derivative_is(objective, gpt.params.value(id), gradients[static_cast<std::size_t>(id.value)], 3))
        << gpt.registry[id].name;
  }
}

TEST(GptGradients, LikeGpt2) {
  GptShape shape = tiny_shape();
  shape.kv_heads = shape.heads;
  shape.tied_head = true;
  check(shape);
}

TEST(GptGradients, LikeLlama) {
  GptShape shape = tiny_shape();
  shape.norm = Norm::rms;
  shape.position = Position::rotary;
  shape.activation = Activation::swiglu;
  shape.bias = false;
  check(shape);
}

TEST(GptGradients, UnusualCombinations) {
  GptShape shape = tiny_shape();
  shape.norm = Norm::rms;
  shape.bias = true;  // of the linear layers; an rms norm has none
  shape.position = Position::rotary;
  check(shape);
  shape.norm = Norm::layer;
  shape.bias = false;
  shape.tied_head = true;
  shape.accumulation = Accumulation::unfused;
  check(shape);
}

TEST(GptGradients, LikeQwen) {
  GptShape shape = tiny_shape();
  shape.norm = Norm::rms;
  shape.eps = 1e-2;
  shape.position = Position::rotary;
  shape.rope_base = 50;
  shape.rope_scaling = {4, 1, 4, 6};
  shape.activation = Activation::swiglu;
  shape.bias = false;
  shape.qkv_bias = true;
  shape.qk_norm = true;
  check(shape);
  shape.qk_norm_over = QkNormOver::width;
  shape.rope_dim = shape.head_dim - 2;
  check(shape);
}

TEST(GptGradients, LikeMixtral) {
  GptShape shape = with_experts(tiny_shape(), {5, 2, true, ExpertWeights::discrete, 0.2, 0.1});
  shape.norm = Norm::rms;
  shape.position = Position::rotary;
  shape.activation = Activation::swiglu;
  shape.bias = false;
  check(shape);
}

TEST(GptGradients, LikeSwitch) { check(with_experts(tiny_shape(), {4, 1, false, ExpertWeights::single, 0.2, 0.1})); }

GptShape like_deepseek() {
  GptShape shape = with_experts(tiny_shape(), {6, 2, true, ExpertWeights::discrete, 0.2, 0.1});
  shape.norm = Norm::rms;
  shape.position = Position::rotary;
  shape.activation = Activation::swiglu;
  shape.bias = false;
  MoeShape& moe = *shape.moe;
  moe.ffn = 9;
  moe.blocks = {1, 1};
  moe.shared_ffn = 14;
  moe.rule = {Scores::sigmoid, DType::f32, 1.5, 3, 2};
  moe.balance_over = BalanceOver::batch;
  moe.bias = true;
  return shape;
}

TEST(GptGradients, LikeDeepSeek) { check(like_deepseek()); }

TEST(GptGradients, OfExpertsThatTakeSomeTokens) {
  for (const double capacity : {0.3, 0.6, 1.0}) {
    SCOPED_TRACE(capacity);
    GptShape shape = like_deepseek();
    shape.moe->capacity = capacity;
    check(shape);
    GptShape softmax = with_experts(tiny_shape(), {5, 2, true, ExpertWeights::discrete, 0.2, 0.1});
    softmax.moe->capacity = capacity;
    softmax.keep.moe = Keep::input;
    check(softmax);
  }
}

TEST(GptGradients, LikeQwenMoe) {
  GptShape shape = with_experts(tiny_shape(), {5, 2, false, ExpertWeights::single, 0.2, 0.1});
  shape.moe->ffn = 9;
  shape.moe->blocks = {0, 2};
  shape.moe->shared_ffn = 14;
  shape.moe->shared_gate = true;
  check(shape);
}

// Of a selection bias: the slots of each expert, summed over micro-batches, whatever is kept or computed again.
TEST(GptGradients, OfABiasAreCounts) {
  for (const Keep keep : {Keep::all, Keep::input}) {
    SCOPED_TRACE(shown(keep));
    GptShape shape = like_deepseek();
    shape.keep.moe = keep;
    TinyGpt gpt(shape, 2);
    for (int micro_batch = 1; micro_batch <= 3; ++micro_batch) {
      micro_batch == 1 ? gpt.gradient() : gpt.add_gradient();
      for (ParamId id : gpt.params.ids()) {
        if (!is_counted(gpt.registry[id].role)) continue;
        const std::vector<double> counts = gpt.params.gradient(id);
        double slots = 0;
        for (double n : counts) slots += n;
        EXPECT_EQ(slots, static_cast<double>(micro_batch * gpt.rows * 2));
        EXPECT_LT(*std::ranges::min_element(counts), *std::ranges::max_element(counts));
      }
    }
  }
}

TEST(GptGradients, HeadInPieces) {
  GptShape shape = tiny_shape();
  shape.tied_head = true;
  shape.logits_at_once = 3 * shape.padded_vocabulary();  // 14 rows: pieces of 3, the last of 2
  check(shape);
}

}  // namespace
}  // namespace tessera::test
