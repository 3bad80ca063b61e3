#include <gtest/gtest.h>

#include "tests/support/sound_config.hpp"

namespace tessera {
namespace {

using namespace test;

TEST(SampleSection, BeginsWithAByteAndEndsAsText) {
  RunConfig config = sound();
  config.sample.tokens = 10;
  EXPECT_EQ(contradictions(config), List{});
  config.sample.prompt.clear();
  EXPECT_EQ(contradictions(config), List{"sample.prompt: is empty: generation starts from at least one byte"});
  config.sample.prompt = "a";
  config.data.kind = DataKind::tokens;
  config.model.vocab = 50257;
  EXPECT_EQ(contradictions(config), List{"sample.tokens: needs data.tokenizer, or data.kind text"});
  config.data.tokenizer = "/some/tokenizer.json";
  EXPECT_EQ(contradictions(config), List{});
}

TEST(SampleSection, AdvisesOfSamplesWithoutTokens) {
  RunConfig config = sound();
  config.sample.every_steps = 10;
  EXPECT_EQ(advice(config), List{"sample.every_steps: no sample: sample.tokens is 0"});
}

}  // namespace
}  // namespace tessera
