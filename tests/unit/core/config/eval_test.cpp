#include <gtest/gtest.h>

#include "tests/support/sound_config.hpp"

namespace tessera {
namespace {

using namespace test;

TEST(EvalSection, NeedsWindowsToEvaluateOn) {
  RunConfig config = sound();
  config.eval.every_steps = 10;
  EXPECT_EQ(advice(config), List{});
  config.data.eval_fraction = 0.0;
  EXPECT_EQ(advice(config), List{"eval.every_steps: no evaluation: data.eval_fraction 0 keeps no windows for it, and "
                                 "there are no data.eval_files"});
  config.data.eval_files = {"val.txt"};
  EXPECT_EQ(advice(config), List{});
  config.data.eval_files.clear();
  config.data.eval_sets = {{"code", {"code.txt"}}};
  EXPECT_EQ(advice(config), List{});
}

TEST(EvalSection, FollowsOneOfTheSets) {
  RunConfig config = sound();
  const auto followed = [&] {
    const RunConfig whole = derived(config);
    return whole.data.evaluation_names().at(followed_set(whole));
  };
  EXPECT_EQ(followed(), "") << "a single set has no name";
  config.data.eval_sets = {{"code", {"code.txt"}}, {"prose", {"prose.txt"}}};
  EXPECT_EQ(followed(), "code") << "nothing is held out of the files";
  config.eval.follow = "prose";
  EXPECT_EQ(followed(), "prose");
  config.data.eval_fraction = 0.1;
  EXPECT_EQ(derived(config).data.evaluation_names(), (List{"held", "code", "prose"}));
  config.eval.follow = "held";
  EXPECT_EQ(followed(), "held");
  EXPECT_EQ(contradictions(config), List{});
  config.eval.follow = "verse";
  EXPECT_EQ(contradictions(config), List{"eval.follow: verse is no evaluation set: there are held, code, prose"});
}

TEST(EvalSection, EvaluatesAveragesWhereTheyAreKept) {
  RunConfig config = sound();
  EXPECT_EQ(derived(config).eval.weights.get(), EvaluatedWeights::trained);
  config.eval.weights = EvaluatedWeights::ema;
  EXPECT_EQ(contradictions(config), List{"eval.weights: is ema, and no averages are kept: set optimizer.ema, as 0.999, "
                                         "or leave weights out"});
  config.eval.weights = {};
  config.optimizer.ema = 0.999;
  EXPECT_EQ(derived(config).eval.weights.get(), EvaluatedWeights::ema);
  config.eval.weights = EvaluatedWeights::trained;
  EXPECT_EQ(contradictions(config), List{});
}

}  // namespace
}  // namespace tessera
