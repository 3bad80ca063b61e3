#include "core/config/effects.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "core/config/keys.hpp"
#include "core/config/values.hpp"
#include "tests/support/sound_config.hpp"

namespace tessera {
namespace {

using test::sound;

void mix(RunConfig& config) {
  config.model.moe.emplace();
  config.model.moe->experts = 4;
  config.model.moe->top_k = 2;
}

/// The keys told of a deck that gives `given`.
std::set<std::string> told(RunConfig config, const std::set<std::string>& given) {
  derive(config);
  std::set<std::string> keys;
  for (const Finding& finding : without_effect(config, given)) keys.insert(finding.keys.front());
  return keys;
}

/// A key, what makes it matter, and a value that asks for something.
struct Situation {
  const char* key;
  void (*matters)(RunConfig&);
  void (*asks)(RunConfig&);
};
const Situation situations[] = {
    {"model.rope_base", [](RunConfig& c) { c.model.position = Position::rotary; }, [](RunConfig&) {}},
    {"model.rope_scaling.low_freq_factor", [](RunConfig& c) { c.model.position = Position::rotary; },
     [](RunConfig& c) { c.model.rope_scaling = RopeScalingConfig{.factor = 8, .original_seq_len = 16}; }},
    {"model.rope_dim", [](RunConfig& c) { c.model.position = Position::rotary; },
     [](RunConfig& c) { c.model.rope_dim = 2; }},
    {"routing.every_steps", mix, [](RunConfig& c) { c.routing.every_steps = 3; }},
    {"routing.record", mix, [](RunConfig& c) { c.routing.record = "choices.bin"; }},
    {"routing.replay", mix, [](RunConfig& c) { c.routing.replay = "choices.bin"; }},
    {"model.qk_norm_over", [](RunConfig& c) { c.model.qk_norm = true; },
     [](RunConfig& c) { c.model.qk_norm_over = QkNormOver::width; }},
    {"recompute.modules", [](RunConfig& c) { c.recompute.mode = RecomputeMode::selective; },
     [](RunConfig& c) { c.recompute.modules = std::vector{RecomputeModule::mlp}; }},
    {"recompute.modules",
     [](RunConfig& c) {
       c.recompute.mode = RecomputeMode::selective;
       c.precision.recipe = RecipeName::mxfp8;
     },
     [](RunConfig& c) { c.recompute.modules = std::vector{RecomputeModule::codes}; }},
    {"recompute.modules",
     [](RunConfig& c) {
       c.recompute.mode = RecomputeMode::selective;
       c.model.activation = Activation::swiglu;
     },
     [](RunConfig& c) { c.recompute.modules = std::vector{RecomputeModule::activation}; }},
    {"recompute.modules",
     [](RunConfig& c) {
       c.recompute.mode = RecomputeMode::selective;
       mix(c);
     },
     [](RunConfig& c) { c.recompute.modules = std::vector{RecomputeModule::moe}; }},
    {"precision.quantize_head", [](RunConfig& c) { c.precision.recipe = RecipeName::mxfp8; },
     [](RunConfig& c) { c.precision.quantize_head = true; }},
    {"precision.bf16_first", [](RunConfig& c) { c.precision.recipe = RecipeName::nvfp4; },
     [](RunConfig& c) { c.precision.bf16_first = 1; }},
    {"precision.bf16_last", [](RunConfig& c) { c.precision.recipe = RecipeName::fp8_block; },
     [](RunConfig& c) { c.precision.bf16_last = 1; }},
    {"precision.statistics_every", [](RunConfig& c) { c.precision.recipe = RecipeName::mxfp8; },
     [](RunConfig& c) { c.precision.statistics_every = 10; }},
    {"precision.seed", [](RunConfig& c) { c.precision.recipe = RecipeName::nvfp4; },
     [](RunConfig& c) { c.precision.seed = 7; }},
    {"optimizer.skip_spikes", [](RunConfig& c) { c.run.steps = 130; },
     [](RunConfig& c) { c.optimizer.skip_spikes = 4; }},
    {"proof.cuts", [](RunConfig& c) { c.precision.recipe = RecipeName::mxfp8; },
     [](RunConfig& c) { c.proof.cuts = GatherCuts::tile; }},
    {"proof.expert_rows",
     [](RunConfig& c) {
       mix(c);
       c.parallel.expert = 2;
     },
     [](RunConfig& c) { c.proof.expert_rows = ExpertRows::peers; }},
    {"optimizer.muon.momentum", [](RunConfig& c) { c.optimizer.matrices = MatrixRule::muon; }, [](RunConfig&) {}},
    {"optimizer.muon.nesterov", [](RunConfig& c) { c.optimizer.matrices = MatrixRule::muon; },
     [](RunConfig& c) { c.optimizer.muon.nesterov = false; }},
    {"optimizer.decay_steps", [](RunConfig& c) { c.optimizer.schedule = RateSchedule::wsd; },
     [](RunConfig& c) { c.optimizer.decay_steps = 7; }},
    {"parallel.expert_room",
     [](RunConfig& c) {
       mix(c);
       c.parallel.expert = 2;
     },
     [](RunConfig& c) { c.parallel.expert_room = 1.5; }},
    {"checkpoint.keep_last", [](RunConfig& c) { c.checkpoint.every_steps = 10; }, [](RunConfig&) {}},
    {"checkpoint.keep_every", [](RunConfig& c) { c.checkpoint.every_steps = 10; },
     [](RunConfig& c) { c.checkpoint.keep_every = 20; }},
    {"checkpoint.async", [](RunConfig& c) { c.checkpoint.every_steps = 10; },
     [](RunConfig& c) { c.checkpoint.async = true; }},
    {"checkpoint.keep_best", [](RunConfig& c) { c.eval.every_steps = 10; },
     [](RunConfig& c) { c.checkpoint.keep_best = true; }},
    {"run.hook_timeout_s", [](RunConfig& c) { c.run.on_save = "true"; },
     [](RunConfig& c) { c.run.hook_timeout_s = 5; }},
    {"eval.follow", [](RunConfig& c) { c.data.eval_sets = {{"code", {"code.txt"}}}; },
     [](RunConfig& c) { c.eval.follow = "code"; }},
    {"run.stop_after", [](RunConfig& c) { c.eval.every_steps = 10; }, [](RunConfig& c) { c.run.stop_after = 2; }},
    {"checkpoint.expert_layout", mix,
     [](RunConfig& c) { c.checkpoint.expert_layout = ExpertLayout::discrete; }},
    {"checkpoint.init_missing", [](RunConfig& c) { c.checkpoint.init_from = "runs/a"; },
     [](RunConfig& c) { c.checkpoint.init_missing = {"head.weight"}; }},
    {"checkpoint.init_ignore_extra", [](RunConfig& c) { c.checkpoint.init_from = "runs/a"; },
     [](RunConfig& c) { c.checkpoint.init_ignore_extra = true; }},
};

TEST(Effects, AreToldWhereGivenAndOfNoUse) {
  for (const Situation& one : situations) {
    RunConfig config = sound();
    one.asks(config);
    EXPECT_EQ(told(config, {one.key}), std::set<std::string>{one.key});
    EXPECT_EQ(told(config, {}), std::set<std::string>{}) << one.key << ": nobody wrote it down";
    one.matters(config);
    EXPECT_EQ(told(config, {one.key}), std::set<std::string>{}) << one.key << ": it matters";
  }
}

/// The same of keys of a mixture.
const Situation of_experts[] = {
    {"model.ffn", [](RunConfig& c) { c.model.moe->first_dense = 1; },
     [](RunConfig& c) {
       c.model.ffn = std::int64_t{100};
       c.model.moe->ffn = std::int64_t{50};
     }},
    {"model.moe.groups", [](RunConfig& c) { c.model.moe->top_groups = std::int64_t{1}; },
     [](RunConfig& c) { c.model.moe->groups = 2; }},
    {"model.moe.balance_over", [](RunConfig& c) { c.model.moe->balance_coef = 0.1; },
     [](RunConfig& c) {
       c.model.moe->balance_coef = 0.0;
       c.model.moe->balance_over = BalanceOver::batch;
     }},
    {"model.moe.bias_rate", [](RunConfig& c) { c.model.moe->bias = true; },
     [](RunConfig& c) { c.model.moe->bias_rate = 0.1; }},
};

TEST(Effects, OfKeysOfAMixtureAreTold) {
  for (const Situation& one : of_experts) {
    RunConfig config = sound();
    mix(config);
    one.asks(config);
    EXPECT_EQ(told(config, {one.key}), std::set<std::string>{one.key});
    one.matters(config);
    EXPECT_EQ(told(config, {one.key}), std::set<std::string>{}) << one.key << ": it matters";
    EXPECT_TRUE(when_it_matters(one.key).starts_with("only ")) << one.key;
  }
}

TEST(Effects, OfManyAtOnceEachIsTold) {
  std::mt19937 draw(7);
  for (int deck = 0; deck < 200; ++deck) {
    RunConfig config = sound();
    std::set<std::string> given, wanted;
    for (const Situation& one : situations) {
      if (draw() % 2) continue;
      one.asks(config);
      given.insert(one.key);
      wanted.insert(one.key);
    }
    EXPECT_EQ(told(config, given), wanted);
  }
}

TEST(Effects, SwitchesThatAreOffAskForNothing) {
  const std::set<std::string> off{"precision.quantize_head", "precision.bf16_last", "recompute.modules",
                                  "optimizer.decay_steps", "checkpoint.keep_every", "checkpoint.async",
                                  "checkpoint.expert_layout", "checkpoint.init_missing", "debug.profile"};
  EXPECT_EQ(told(sound(), off), std::set<std::string>{});
}

TEST(Effects, AResolvedDeckGivesEveryKeyAndMeansItsOwn) {
  RunConfig config = sound();
  derive(config);
  std::set<std::string> all;
  for (const auto& [key, value] : values_of(config)) all.insert(key);
  EXPECT_EQ(told(config, all), std::set<std::string>{});
  config.optimizer.muon.momentum = 0.9;
  EXPECT_EQ(told(config, all), std::set<std::string>{"optimizer.muon.momentum"});
  all.erase("optimizer.lr");  // a deck like others
  EXPECT_TRUE(told(config, all).contains("optimizer.muon.scale"));
}

TEST(Effects, AreExplained) {
  for (const Situation& situation : situations)
    EXPECT_TRUE(when_it_matters(situation.key).starts_with("only ")) << situation.key;
  EXPECT_EQ(when_it_matters("run.seed"), "");
  EXPECT_EQ(when_it_matters("model.rope_base"), "only with position rotary (model.position)");
  EXPECT_EQ(when_it_matters("model.rope_scaling.factor"), "only with position rotary (model.position)");
  EXPECT_EQ(when_it_matters("checkpoint.async"), "only with checkpoint.every_steps above 0, or keep_best: else the "
                                                 "last step and early ends alone are saved");
}

}  // namespace
}  // namespace tessera
