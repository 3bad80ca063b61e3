#include <gtest/gtest.h>

#include "tests/support/finite_differences.hpp"
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

TEST(GptGradients, HeadInPieces) {
  GptShape shape = tiny_shape();
  shape.tied_head = true;
  shape.logits_at_once = 3 * shape.padded_vocabulary();  // 14 rows: pieces of 3, the last of 2
  check(shape);
}

}  // namespace
}  // namespace tessera::test
