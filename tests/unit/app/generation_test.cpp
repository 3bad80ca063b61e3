#include "app/training/loop/generation.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "kernels/base/error.hpp"

namespace tessera {
namespace {

const std::vector<float> logits{0.5f, 3.0f, -1.0f, 3.0f, 2.0f};

/// How often each token is drawn at evenly spread quantiles.
std::map<std::int32_t, int> drawn(const Sampling& sampling) {
  std::map<std::int32_t, int> counts;
  for (int i = 0; i < 1000; ++i) ++counts[draw(logits, sampling, (i + 0.5) / 1000)];
  return counts;
}

TEST(Generation, ColdTakesTheFirstOfTheMostLikely) {
  for (const double u : {0.0, 0.999}) EXPECT_EQ(draw(logits, {.temperature = 0}, u), 1);
  EXPECT_EQ(draw(logits, {.temperature = 0, .top_k = 3, .top_p = 0.1}, 0.7), 1);
}

TEST(Generation, FrequenciesAreTheSoftmax) {
  for (const double temperature : {0.5, 1.0, 3.0}) {
    double sum = 0;
    for (float logit : logits) sum += std::exp(logit / temperature);
    for (auto [token, count] : drawn({.temperature = temperature}))
      EXPECT_NEAR(count, 1000 * std::exp(logits[static_cast<std::size_t>(token)] / temperature) / sum, 1.01);
  }
}

TEST(Generation, OnlyTheMostLikelyAreLeft) {
  const auto keys = [](const std::map<std::int32_t, int>& counts) {
    std::vector<std::int32_t> tokens;
    for (auto [token, count] : counts) tokens.push_back(token);
    return tokens;
  };
  EXPECT_EQ(keys(drawn({.temperature = 1, .top_k = 1})), (std::vector<std::int32_t>{1}));
  EXPECT_EQ(keys(drawn({.temperature = 1, .top_k = 3})), (std::vector<std::int32_t>{1, 3, 4}));
  EXPECT_EQ(keys(drawn({.temperature = 1, .top_k = 99})), (std::vector<std::int32_t>{0, 1, 2, 3, 4}));
  // Probabilities: 0.411 twice, 0.151, 0.034, 0.008.
  EXPECT_EQ(keys(drawn({.temperature = 1, .top_p = 0.4})), (std::vector<std::int32_t>{1}));
  EXPECT_EQ(keys(drawn({.temperature = 1, .top_p = 0.8})), (std::vector<std::int32_t>{1, 3}));
  EXPECT_EQ(keys(drawn({.temperature = 1, .top_p = 0.83})), (std::vector<std::int32_t>{1, 3, 4}));
  EXPECT_EQ(keys(drawn({.temperature = 1, .top_k = 2, .top_p = 0.9})), (std::vector<std::int32_t>{1, 3}));
}

TEST(Generation, WhatIsNotFiniteIsRefused) {
  for (const float wrong : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
    EXPECT_THROW(draw({0, wrong, 1}, {}, 0.5), Error);
}

TEST(Generation, EndsWhereTheSinkSaysSo) {
  const NextLogits count_up = [](const std::vector<std::int32_t>& ids) {
    std::vector<float> next(20, 0.0f);
    next[ids.size()] = 100;
    return next;
  };
  std::vector<std::int32_t> seen;
  const auto until = [&](std::int32_t last) {
    seen.clear();
    generate(count_up, {}, {0, 1}, 9, [&](std::int32_t id) {
      seen.push_back(id);
      return id != last;
    });
    return seen;
  };
  EXPECT_EQ(until(4), (std::vector<std::int32_t>{2, 3, 4}));
  EXPECT_EQ(until(99).size(), 9u);
}

}  // namespace
}  // namespace tessera
