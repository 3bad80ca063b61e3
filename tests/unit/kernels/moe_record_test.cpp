#include <gtest/gtest.h>

#include <cmath>

#include "kernels/digest/digest.hpp"
#include "kernels/moe/moe.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/on_device.hpp"

namespace tessera {
namespace {

using test::on_device, test::on_host, test::poisoned, test::uniform;
using Words = std::vector<std::int64_t>;

template <class A>
Routing memory_for(Device& device, const RouterShape& s) {
  const std::int64_t m = s.tokens(), e = s.experts, k = s.top_k;
  const auto i32 = [&](Shape shape) { return poisoned(device, DType::i32, shape); };
  return {poisoned<A>(device, {m, e}), poisoned<A>(device, {m}), i32({m, k}), poisoned<A>(device, {m, k}), i32({e + 1}),
          i32({m, k}), i32({s.rows()}), i32({s.sequences, e}), poisoned<A>(device, {m}), {}};
}

/// Routes tokens and adds what is recorded of it to `before`.
template <class A>
Words record(const RouterShape& s, const std::vector<A>& logits, std::int64_t first, const Words& before,
             std::vector<std::int32_t>* expert = nullptr, std::vector<A>* scores = nullptr) {
  Device device;
  Arena arena = device.arena(Category::activations, 1 << 20);
  Routing routing = memory_for<A>(device, s);
  routing.logits = on_device(device, Shape{s.tokens(), s.experts}, logits);
  route(device.compute(), arena, s, routing, routing.logits);
  const Tensor words = on_device(device, before);
  record_routing(device.compute(), s, routing, words, first);
  if (expert) *expert = on_host<std::int32_t>(device, routing.expert);
  if (scores) *scores = on_host<A>(device, routing.scores);
  return on_host<std::int64_t>(device, words);
}

std::vector<RouterShape> shapes() {
  std::vector<RouterShape> all = {{1, 1, 1, 1, true}, {3, 7, 8, 8, true}, {4, 50, 33, 4, true}, {2, 9, 256, 8, false}};
  const auto plain = all.size();
  for (std::size_t i = 0; i < plain; ++i) {
    all.push_back(all[i]);
    all.back().rule.scores = Scores::sigmoid;
  }
  return all;
}

template <class A>
class Record : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(Record, Types);

TYPED_TEST(Record, CountsSlotsEntropiesAndChoices) {
  using A = TypeParam;
  for (const RouterShape& s : shapes()) {
    const auto logits = uniform<A>(s.tokens() * s.experts, 3, -4, 4);
    const std::int64_t first = 1000;
    Words before(static_cast<std::size_t>(RoutingRecord::words(s.experts)), 5);
    std::vector<std::int32_t> expert;
    std::vector<A> scores;
    const Words made = record<A>(s, logits, first, before, &expert, &scores);
    Words load(static_cast<std::size_t>(s.experts), 5);
    std::uint64_t choices = 5;
    for (std::size_t slot = 0; slot < expert.size(); ++slot) {
      ++load[static_cast<std::size_t>(expert[slot])];
      const std::uint64_t number = static_cast<std::uint64_t>(first * s.top_k) + slot + 1;
      choices += mix64(static_cast<std::uint32_t>(expert[slot]) ^ number * 0x9E3779B97F4A7C15u);
    }
    EXPECT_TRUE(std::equal(load.begin(), load.end(), made.begin()));
    EXPECT_EQ(static_cast<std::uint64_t>(made[static_cast<std::size_t>(RoutingRecord::choices(s.experts))]), choices);
    double nats = 0;
    for (std::int64_t m = 0; m < s.tokens(); ++m) {
      const auto row = scores.begin() + m * s.experts;
      double total = 0;
      for (std::int64_t e = 0; e < s.experts; ++e) total += static_cast<double>(row[e]);
      for (std::int64_t e = 0; e < s.experts; ++e)
        if (const double q = static_cast<double>(row[e]) / total; q > 0) nats -= q * std::log(q);
    }
    const auto found = static_cast<double>(made[static_cast<std::size_t>(RoutingRecord::entropy(s.experts))] - 5);
    const auto terms = static_cast<double>(s.tokens() * s.experts);  // each is rounded to the unit
    EXPECT_NEAR(found * RoutingRecord::entropy_unit, nats, terms * RoutingRecord::entropy_unit) << s.experts;
  }
}

// Sums of any pieces in any order are those of the whole.
TYPED_TEST(Record, AddsUpOverMicroBatches) {
  using A = TypeParam;
  for (const RouterShape& s : shapes()) {
    if (s.sequences == 1) continue;
    const auto logits = uniform<A>(s.tokens() * s.experts, 9, -4, 4);
    const Words none(static_cast<std::size_t>(RoutingRecord::words(s.experts)), 0);
    const Words whole = record<A>(s, logits, 64, none);
    Words sum = none;
    RouterShape one = s;
    one.sequences = 1;
    for (std::int64_t b = s.sequences; b-- > 0;) {
      const auto begin = logits.begin() + b * s.length * s.experts;
      sum = record<A>(one, {begin, begin + s.length * s.experts}, 64 + b * s.length, sum);
    }
    EXPECT_EQ(sum, whole) << s.experts;
  }
}

TEST(RecordChecks, TokensWithoutNumbersHaveNoEntropy) {
  const RouterShape s{1, 2, 3, 1, true};
  const float nan = std::nanf("");
  const Words made = record<float>(s, {nan, nan, nan, 0, 0, 0}, 0, Words(7, 0));
  EXPECT_NEAR(static_cast<double>(made[3]), std::log(3.0) / RoutingRecord::entropy_unit, 3);
  EXPECT_EQ(made[0] + made[1] + made[2], 2);
}

}  // namespace
}  // namespace tessera
