#include <gtest/gtest.h>

#include "tests/support/sound_config.hpp"

namespace tessera {
namespace {

using namespace test;

TEST(ModelSection, DerivesWhatFollows) {
  const ModelConfig model = derived(sound()).model;
  EXPECT_EQ(model.kv_heads.get(), 6);
  EXPECT_EQ(model.head_dim.get(), 16);
  EXPECT_EQ(model.rope_dim.get(), 16);
  EXPECT_EQ(model.ffn.get(), 384);
  EXPECT_TRUE(model.bias.get());
  EXPECT_EQ(model.vocab.get(), 256);
}

TEST(ModelSection, FollowsItsOtherKeys) {
  RunConfig config = sound();
  config.model.activation = Activation::swiglu;
  config.model.norm = Norm::rms;
  config.data.kind = DataKind::tokens;
  const ModelConfig model = derived(config).model;
  EXPECT_EQ(model.ffn.get(), 256);  // 8 * 96 / 3
  EXPECT_FALSE(model.bias.get());
  EXPECT_FALSE(model.vocab.known());
}

TEST(ModelSection, RoundsTheGatedWidthUp) {
  for (const auto& [hidden, ffn] : {std::pair{48, 128}, {49, 256}, {256, 768}, {768, 2048}, {1000, 2688}}) {
    RunConfig config = sound();
    config.model.hidden = hidden;
    config.model.activation = Activation::swiglu;
    derive(config);
    EXPECT_EQ(config.model.ffn.get(), ffn) << hidden;
  }
}

TEST(ModelSection, LeavesAloneWhatWasGiven) {
  RunConfig config = sound();
  config.model.kv_heads = 2;
  config.model.head_dim = 8;
  config.model.bias = false;
  const ModelConfig model = derived(config).model;
  EXPECT_EQ(model.kv_heads, config.model.kv_heads);
  EXPECT_EQ(model.head_dim, config.model.head_dim);
  EXPECT_EQ(model.bias, config.model.bias);
}

TEST(ModelSection, RefusesHeadsThatDoNotFit) {
  RunConfig config = sound();
  config.model.heads = 5;
  EXPECT_EQ(contradictions(config),
            List{"model.heads: 5 heads do not divide hidden 96: change one of them, or give model.head_dim"});
  config.model.head_dim = 16;
  EXPECT_EQ(contradictions(config), List{});

  config = sound();
  config.model.position = Position::rotary;
  config.model.head_dim = 15;
  EXPECT_EQ(contradictions(config), List{"model.head_dim: 15 is odd, and position rotary turns pairs: make it even, or "
                                         "turn fewer of them by model.rope_dim"});
  config.model.rope_dim = 8;
  EXPECT_EQ(contradictions(config), List{});
  config.model.rope_dim = 7;
  EXPECT_EQ(contradictions(config), List{"model.rope_dim: 7 is odd, and position rotary turns pairs: use 8"});
  config.model.rope_dim = 16;
  EXPECT_EQ(contradictions(config), List{"model.rope_dim: 16 of a head's 15 elements cannot be turned: use at most "
                                         "head_dim, or leave it out"});

  config = sound();
  config.model.kv_heads = 4;
  EXPECT_EQ(contradictions(config), List{"model.kv_heads: 4 does not divide heads 6"});
}

TEST(ModelSection, RefusesAVocabularyThatCannotHoldItsTokens) {
  RunConfig config = sound();
  config.model.vocab = 255;
  EXPECT_EQ(contradictions(config), List{"model.vocab: 255 entries cannot hold the 256 bytes of data.kind text"});
  config = sound();
  config.data.kind = DataKind::tokens;
  EXPECT_EQ(contradictions(config),
            List{"model.vocab: missing: token files do not say how large their vocabulary is; give it, or "
                 "data.tokenizer"});
  config.model.vocab = 50257;
  EXPECT_EQ(contradictions(config), List{});
}

TEST(ModelSection, RefusesWhatNoMachineHolds) {
  RunConfig config = sound();
  config.model.hidden = 1 << 20;
  config.model.head_dim = 1;
  config.model.layers = 10000;
  EXPECT_EQ(contradictions(config), List{"model.hidden: 1e+17 parameters are more than 1e+15, which no machine holds"});

  config = sound();
  config.model.seq_len = 1 << 24;
  config.batch = {.global = 1 << 24, .micro = 1 << 24};
  EXPECT_EQ(contradictions(config),
            List{"batch.micro: 1e+18 numbers in a micro-batch are more than 1e+15, which no machine holds"});
}

TEST(ModelSection, AdvisesAgainstABiasTwice) {
  RunConfig config = sound();
  config.model.qkv_bias = true;
  EXPECT_EQ(advice(config), List{"model.qkv_bias: bias true gives one to every linear layer anyway"});
  config.model.bias = false;
  EXPECT_EQ(advice(config), List{});
}

TEST(ModelSection, RotaryPositionsTurnPairsOfAHead) {
  for (std::int64_t head = 1; head <= 9; ++head)
    for (std::int64_t turned = 0; turned <= 10; ++turned) {  // 0: left out
      RunConfig config = sound();
      config.model.head_dim = head;
      if (turned > 0) config.model.rope_dim = turned;
      EXPECT_EQ(contradictions(config), List{}) << "learned positions turn nothing";
      config.model.position = Position::rotary;
      const std::int64_t used = turned > 0 ? turned : head;
      const List found = contradictions(config);
      ASSERT_EQ(found.size(), used > head || used % 2 != 0 ? 1u : 0u) << head << " " << turned;
      if (found.empty()) continue;
      const std::string key = used > head || turned != head ? "model.rope_dim" : "model.head_dim";
      EXPECT_TRUE(found.front().starts_with(turned == 0 ? "model.head_dim" : key)) << found.front();
    }
}

}  // namespace
}  // namespace tessera
