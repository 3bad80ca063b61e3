// Gpt::extend with a key/value cache, token by token or in pieces, against the model's forward over the whole sequence.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "core/plan/plan.hpp"
#include "core/plan/recorder.hpp"
#include "core/step/decoder.hpp"
#include "kernels/base/runtime.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/small_runs.hpp"
#include "tests/support/tiny_gpt.hpp"

namespace tessera::test {
namespace {

/// Every kind of model: learned positions and rotary ones, query and key norm, biases here and there, experts.
std::vector<GptShape> shapes() {
  GptShape gpt2 = tiny_shape();
  GptShape qwen = tiny_shape();
  qwen.norm = Norm::rms;
  qwen.position = Position::rotary;
  qwen.rope_base = 50;
  qwen.rope_scaling = {4, 1, 4, 6};
  qwen.activation = Activation::swiglu;
  qwen.bias = false;
  qwen.qkv_bias = qwen.qk_norm = true;
  GptShape in_part = qwen;
  in_part.qk_norm_over = QkNormOver::width;
  in_part.rope_dim = in_part.head_dim - 2;
  GptShape mixed = with_experts(qwen, {5, 2, true, ExpertWeights::single, 0.2, 0.1}), dropping = mixed;
  dropping.moe->capacity = 0.7;
  return {gpt2, qwen, in_part, mixed, dropping};
}

/// Logits after every piece of the first sequence.
std::vector<std::vector<double>> grown(TinyGpt& gpt, const std::vector<std::int64_t>& pieces) {
  const Arena::Frame frame(gpt.arena);
  const Pass pass{gpt.device.compute(), gpt.params, nullptr, gpt.arena};
  Sequence sequence = gpt.model.sequence(gpt.device.compute(), gpt.arena, gpt.model.shape().seq_len);
  const Tensor logits = poisoned(gpt.device, gpt.model.shape().sum_type(), {gpt.model.shape().vocabulary});
  std::vector<std::vector<double>> all;
  for (const std::int64_t some : pieces) {
    gpt.model.extend(pass, sequence, gpt.batch.ids.flat(sequence.length, some), logits);
    all.push_back(download_real(gpt.device, logits));
  }
  return all;
}

/// `tolerance` is relative to the largest logit wanted.
void expect_near(const std::vector<double>& found, const std::vector<double>& wanted, double tolerance) {
  ASSERT_FALSE(wanted.empty());
  ASSERT_EQ(found.size(), wanted.size());
  const double most = std::abs(*std::ranges::max_element(wanted, {}, [](double x) { return std::abs(x); }));
  for (std::size_t v = 0; v < wanted.size(); ++v) EXPECT_LE(std::abs(found[v] - wanted[v]), tolerance * most) << v;
}
double tolerance_of(DType type) { return type == DType::f64 ? 1e-12 : type == DType::f32 ? 2e-5 : 0.06; }

TEST(GptExtend, EveryTokenHasTheLogitsOfTheWholeForward) {
  for (const DType type : {DType::f64, DType::f32, DType::bf16})
    for (GptShape shape : shapes()) {
      shape.compute = type;
      TinyGpt gpt(shape, 2);
      const std::vector<std::int64_t> one_by_one(static_cast<std::size_t>(shape.seq_len), 1);
      const auto logits = grown(gpt, one_by_one);
      for (std::int64_t t = 0; t < shape.seq_len; ++t) {
        SCOPED_TRACE(std::string(name_of(type)) + " token " + std::to_string(t));
        expect_near(logits[static_cast<std::size_t>(t)], gpt.next_logits(0, t), tolerance_of(type));
      }
    }
}

TEST(GptExtend, NoBitDependsOnThePieces) {
  for (const DType type : {DType::f32, DType::bf16})
    for (GptShape shape : shapes()) {
      shape.compute = type;
      TinyGpt gpt(shape, 1);
      const auto one_by_one = grown(gpt, {1, 1, 1, 1, 1, 1, 1});
      // On GPUs a row of a product has other bits beside other rows.
      const double tolerance = Runtime::back_end() == "Cuda" ? tolerance_of(type) : 0;
      const auto pieces = grown(gpt, {4, 2, 1}), whole = grown(gpt, {7});
      expect_near(pieces[0], one_by_one[3], tolerance);
      expect_near(pieces[1], one_by_one[5], tolerance);
      expect_near(pieces[2], one_by_one[6], tolerance);
      expect_near(whole[0], one_by_one[6], tolerance);
    }
}

/// A decoder's plan for sequences of `capacity` tokens by a model of one block.
RunPlan decoding_plan(std::int64_t heads, std::int64_t capacity) {
  RunConfig config = dense(Compute::bf16);
  config.model.layers = 1;
  config.model.heads = config.model.hidden = heads;
  config.model.kv_heads = heads;
  config.model.head_dim = 1;
  config.model.seq_len = capacity;
  return resolve_decoding(config, 1, 0, capacity);
}

/// Bytes of activations that a piece of `tokens` takes whose first token is number `first`.
std::int64_t activations_of(const RunPlan& plan, std::int64_t tokens, std::int64_t first) {
  Device device(Device::Kind::measuring);
  UsageRecorder recorder(plan.registry, plan.sync.weights);
  Arena arena;
  Sequence sequence = plan.model.sequence(device.compute(), arena, plan.sizes.length);
  sequence.length = first;
  const Tensor ids = device.allocate(Category::batch, DType::i32, {tokens});
  const Tensor logits = device.allocate(Category::batch, DType::f32, {plan.model.shape().vocabulary});
  plan.model.extend({device.compute(), recorder, nullptr, arena}, sequence, ids, logits);
  return arena.peak();
}

TEST(GptExtend, ThePlanCoversEveryPieceAtEveryPosition) {
  for (const auto& [heads, capacity] : {std::pair{32, 600}, {9, 1900}, {14, 1300}, {64, 300}, {7, 2500}}) {
    const RunPlan plan = decoding_plan(heads, capacity);
    for (std::int64_t tokens = 1; tokens <= Decoder::most_at_once; tokens *= 2)
      for (std::int64_t first = 0; first + tokens <= capacity; ++first)
        ASSERT_LE(activations_of(plan, tokens, first), plan.sizes.activation_bytes)
            << heads << " heads, " << capacity << " tokens at most, " << tokens << " from token " << first;
  }
}

TEST(GptExtend, ASequenceEndsWithItsRoom) {
  TinyGpt gpt(shapes().front(), 1);
  EXPECT_NO_THROW(grown(gpt, {3, 4}));
  EXPECT_THROW(grown(gpt, {7, 1}), Error);
}

}  // namespace
}  // namespace tessera::test
