#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/sound_config.hpp"

namespace tessera {
namespace {

using namespace test;

RunConfig mixture(std::int64_t experts, std::int64_t top_k, void (*change)(MoeConfig&)) {
  RunConfig config = with_experts(experts, top_k);
  change(*config.model.moe);
  return config;
}

TEST(MoeSection, GroupsHoldTheChosenExperts) {
  const auto of = [](std::int64_t experts, std::int64_t top_k, std::int64_t groups, std::int64_t top_groups) {
    RunConfig config = with_experts(experts, top_k);
    config.model.moe->groups = groups;
    config.model.moe->top_groups = top_groups;
    return contradictions(config);
  };
  for (std::int64_t experts = 1; experts <= 12; ++experts)
    for (std::int64_t groups = 1; groups <= 13; ++groups)
      for (std::int64_t top = 1; top <= groups; ++top)
        for (std::int64_t k = 1; k <= experts; ++k) {
          const bool sound = experts % groups == 0 && top * (experts / groups) >= k;
          EXPECT_EQ(of(experts, k, groups, top).empty(), sound) << experts << " " << groups << " " << top << " " << k;
        }
  EXPECT_EQ(of(6, 2, 4, 4), List{"model.moe.groups: 4 does not divide 6 experts, of which each group has as many: use "
                                 "1, 2, 3 or 6"});
  EXPECT_EQ(of(6, 2, 3, 4), List{"model.moe.top_groups: 4 of 3 groups: at most all of them"});
  EXPECT_EQ(of(6, 3, 3, 1), List{"model.moe.top_groups: 1 groups of 2 experts do not hold the 3 that a token visits: "
                                 "use 2 or more"});
}

TEST(MoeSection, AMixtureHasLayersWithExperts) {
  const auto of = [](std::int64_t layers, std::int64_t first_dense, std::int64_t every) {
    RunConfig config = with_experts(4, 2);
    config.model.layers = layers;
    config.model.moe->first_dense = first_dense;
    config.model.moe->every = every;
    return config;
  };
  for (std::int64_t layers = 1; layers <= 7; ++layers)
    for (std::int64_t first = 0; first <= 8; ++first)
      for (std::int64_t every = 1; every <= 8; ++every) {
        const RunConfig config = of(layers, first, every);
        std::int64_t mixtures = 0;
        for (std::int64_t i = first; i < layers; ++i) mixtures += (i + 1) % every == 0;
        EXPECT_EQ(config.model.moe->blocks().among(layers), mixtures);
        EXPECT_EQ(contradictions(config).empty(), mixtures > 0);
      }
  EXPECT_EQ(contradictions(of(3, 3, 1)), List{"model.moe.first_dense: leaves none of 3 layers with experts: use a "
                                              "smaller one, or leave model.moe out"});
  EXPECT_EQ(contradictions(of(3, 0, 4)), List{"model.moe.every: leaves none of 3 layers with experts: use a smaller "
                                              "one, or leave model.moe out"});
}

TEST(MoeSection, AGateNeedsASharedExpert) {
  EXPECT_EQ(contradictions(mixture(4, 2, [](MoeConfig& m) { m.shared_gate = true; })),
            List{"model.moe.shared_gate: there is no shared expert whose answer it could multiply: give shared_ffn its "
                 "width, or leave the gate out"});
  EXPECT_EQ(contradictions(mixture(4, 2, [](MoeConfig& m) {
              m.shared_gate = true;
              m.shared_ffn = 8;
            })),
            List{});
}

TEST(MoeSection, SlotsAreCountedExactly) {
  RunConfig config = mixture(4, 2, [](MoeConfig& m) { m.bias = true; });
  config.model.seq_len = 1 << 15;
  config.batch = {.global = (1 << 10) - 1, .micro = 1};
  EXPECT_EQ(contradictions(config), List{});
  config.batch.global = 1 << 10;  // an even share of 2^24 tokens
  EXPECT_EQ(contradictions(config).size(), 1u);
  EXPECT_TRUE(contradictions(config).front().starts_with("model.moe.bias: an expert's even share of a step is 1.68e+07 "
                                                         "tokens"));
  config.model.moe->bias = false;
  EXPECT_EQ(contradictions(config), List{});
  config.model.moe->balance_over = BalanceOver::batch;
  config.batch.global = 1 << 9;
  EXPECT_TRUE(contradictions(config).front().starts_with("model.moe.balance_over: is batch, and a step's 1.68e+07 "
                                                         "tokens"));
  config.batch.global -= 1;
  EXPECT_EQ(contradictions(config), List{});
}

TEST(MoeSection, KeysOfExpertsFollowFromOthers) {
  RunConfig config = mixture(8, 2, [](MoeConfig& m) { m.groups = 4; });
  derive(config);
  const MoeConfig plain = *config.model.moe;
  EXPECT_EQ(plain.ffn.get(), config.model.ffn.get());
  EXPECT_EQ(plain.top_groups.get(), 4);
  EXPECT_EQ(plain.balance_coef.get(), 0.01);
  EXPECT_EQ(plain.z_coef.get(), 0.001);
  config = mixture(8, 2, [](MoeConfig& m) {
    m.bias = true;
    m.scores = Scores::sigmoid;
  });
  derive(config);
  EXPECT_EQ(config.model.moe->balance_coef.get(), 0.0001);
  EXPECT_EQ(config.model.moe->z_coef.get(), 0);
}

TEST(MoeSection, TokensVisitExpertsThatAre) {
  EXPECT_EQ(contradictions(with_experts(4, 5)), List{"model.moe.top_k: 5 of 4 experts: at most all of them"});
  EXPECT_TRUE(derived(with_experts(4, 2)).model.moe->renormalize.get());
  RunConfig config = with_experts(4, 1);
  EXPECT_FALSE(derived(config).model.moe->renormalize.get());
  EXPECT_EQ(advice(config), List{});
  config.model.moe->renormalize = true;
  EXPECT_EQ(advice(config), List{"model.moe.renormalize: with top_k 1 every weight is 1 and the router learns from its "
                                 "own losses alone"});
}

TEST(MoeSection, ACapacityDropsSomething) {
  for (const auto& [capacity, drops] : {std::pair(0.5, true), {1.99, true}, {2.0, false}, {7.0, false}}) {
    RunConfig config = mixture(4, 2, [](MoeConfig&) {});
    config.model.moe->capacity = capacity;
    const List told = advice(config);
    EXPECT_EQ(std::ranges::none_of(told, [](const std::string& one) { return one.starts_with("model.moe.capacity"); }),
              drops)
        << capacity;
  }
}

}  // namespace
}  // namespace tessera
