// Experts that take some slots of a sequence, and choices that are given instead of made.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "kernels/moe/moe.hpp"
#include "tests/reference/moe.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/on_device.hpp"
#include "tests/support/shown.hpp"

namespace tessera {
namespace {

using test::in_double, test::near, test::on_device, test::on_host, test::poisoned, test::uniform;
using Integers = std::vector<std::int32_t>;

/// A routing of tokens by logits; A is their type.
template <class A>
struct Routed {
  Routed(Device& on, const RouterShape& s, const std::vector<A>& logits, const RouteGiven& given = {})
      : device(on), shape(s) {
    const std::int64_t m = s.tokens(), e = s.experts, k = s.top_k;
    const auto i32 = [&](Shape of) { return poisoned(device, DType::i32, of); };
    routing = {poisoned<A>(device, {m, e}), poisoned<A>(device, {m}), i32({m, k}), poisoned<A>(device, {m, k}),
               i32({e + 1}), i32({m, k}), i32({s.rows()}), i32({s.sequences, e}), poisoned<A>(device, {m}), {},
               s.capacity > 0};
    Arena arena = device.arena(Category::activations, 1 << 20);
    route(device.compute(), arena, s, routing, on_device(device, Shape{m, e}, logits), {}, given);
  }
  Integers integers(const Tensor& t) const { return on_host<std::int32_t>(device, t); }
  std::vector<A> values(const Tensor& t) const { return on_host<A>(device, t); }

  Device& device;
  RouterShape shape;
  Routing routing;
};

template <class A>
std::vector<A> logits_for(const RouterShape& s, unsigned seed) {
  return uniform<A>(s.tokens() * s.experts, seed, -3, 3);
}

/// Drawn shapes with every capacity from one slot to more than there are.
std::vector<RouterShape> shapes() {
  std::vector<RouterShape> all;
  for (const RouterShape& plain : {RouterShape{1, 1, 1, 1, true}, RouterShape{2, 5, 3, 2, true},
                                   RouterShape{3, 7, 8, 8, true}, RouterShape{4, 33, 40, 6, false},
                                   RouterShape{1, 90, 5, 3, true}})
    for (const std::int64_t capacity : {1, 2, 5, 17, 200})
      for (const Scores scores : {Scores::softmax, Scores::sigmoid}) {
        all.push_back(plain);
        all.back().capacity = capacity;
        all.back().rule.scores = scores;
      }
  return all;
}

template <class A>
class Capacity : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(Capacity, Types);

TYPED_TEST(Capacity, RowsAreTheReferences) {
  Device device;
  for (const RouterShape& shape : shapes()) {
    const auto logits = logits_for<TypeParam>(shape, 5);
    const Routed<TypeParam> r(device, shape, logits);
    const auto wanted = reference::route(shape, in_double(logits));
    EXPECT_EQ(r.integers(r.routing.expert), wanted.expert);
    EXPECT_EQ(r.integers(r.routing.load), wanted.load) << "before drops";
    EXPECT_EQ(r.integers(r.routing.row_of_slot), wanted.row_of_slot);
    EXPECT_EQ(r.integers(r.routing.token_of_row), wanted.token_of_row);
    EXPECT_EQ(r.integers(r.routing.offsets), wanted.offsets);
    RouterShape all = shape;
    all.capacity = 0;
    EXPECT_EQ(r.values(r.routing.weight), Routed<TypeParam>(device, all, logits).values(r.routing.weight));
  }
}

TEST(CapacityByHand, AnExpertTakesTheFirstTokensOfEachSequence) {
  RouterShape shape{2, 4, 3, 1, false};
  shape.capacity = 2;
  Device device;
  std::vector<float> logits(24, 0);
  const int expert[] = {1, 1, 1, 0, 1, 2, 1, 1};
  for (std::size_t m = 0; m < 8; ++m) logits[m * 3 + static_cast<std::size_t>(expert[m])] = 4;
  const Routed<float> r(device, shape, logits);
  EXPECT_EQ(r.integers(r.routing.row_of_slot), (Integers{1, 2, -1, 0, 3, 5, 4, -1}));
  EXPECT_EQ(r.integers(r.routing.token_of_row), (Integers{3, 0, 1, 4, 6, 5, -1, -1}));
  EXPECT_EQ(r.integers(r.routing.offsets), (Integers{0, 1, 5, 6}));
  EXPECT_EQ(r.integers(r.routing.load), (Integers{1, 3, 0, 0, 3, 1}));
}

// Rows of each expert begin at multiples: the same slots have rows, in the same order, with gaps between.
TYPED_TEST(Capacity, RowsBeginAtMultiples) {
  Device device;
  for (RouterShape shape : shapes()) {
    SCOPED_TRACE(test::shown(shape.sequences, shape.length, shape.experts, shape.top_k, shape.row_multiple));
    const auto logits = logits_for<TypeParam>(shape, 6);
    const auto compact = reference::route(shape, in_double(logits));
    shape.row_multiple = 16;
    const Routed<TypeParam> r(device, shape, logits);
    const Integers offsets = r.integers(r.routing.offsets), rows = r.integers(r.routing.row_of_slot);
    std::int32_t begin = 0;
    for (std::size_t e = 0; e < static_cast<std::size_t>(shape.experts); ++e) {
      EXPECT_EQ(offsets[e], begin);
      begin += (compact.offsets[e + 1] - compact.offsets[e] + 15) / 16 * 16;
    }
    EXPECT_EQ(offsets.back(), begin);
    Integers tokens(static_cast<std::size_t>(shape.rows()), -1);
    for (std::size_t s = 0; s < rows.size(); ++s) {
      const auto e = static_cast<std::size_t>(compact.expert[s]);
      EXPECT_EQ(rows[s], compact.row_of_slot[s] < 0 ? -1 : compact.row_of_slot[s] - compact.offsets[e] + offsets[e]);
      if (rows[s] >= 0) tokens[static_cast<std::size_t>(rows[s])] = static_cast<std::int32_t>(s) / shape.top_k;
    }
    EXPECT_EQ(r.integers(r.routing.token_of_row), tokens);
  }
}

// A sequence that grows in pieces drops what it drops as a whole.
TYPED_TEST(Capacity, PiecesCountTheSlotsBeforeThem) {
  Device device;
  for (RouterShape shape : shapes()) {
    shape.sequences = 1;
    const auto logits = logits_for<TypeParam>(shape, 7);
    const auto whole = reference::route(shape, in_double(logits));
    const Tensor taken = on_device(device, Integers(static_cast<std::size_t>(shape.experts), 0));
    std::vector<bool> kept;
    for (std::int64_t first = 0, some = 1; first < shape.length; first += some, some = some * 2 % 7 + 1) {
      RouterShape piece = shape;
      piece.length = std::min(some, shape.length - first);
      const auto begin = logits.begin() + first * shape.experts;
      const Routed<TypeParam> r(device, piece, {begin, begin + piece.length * shape.experts}, {{}, taken});
      for (const std::int32_t row : r.integers(r.routing.row_of_slot)) kept.push_back(row >= 0);
    }
    for (std::size_t s = 0; s < kept.size(); ++s) ASSERT_EQ(kept[s], whole.row_of_slot[s] >= 0) << "slot " << s;
    EXPECT_EQ(on_host<std::int32_t>(device, taken), whole.load);
  }
}

// Tokens lose the answers of experts that did not take them, and these no gradient reaches.
TYPED_TEST(Capacity, DroppedSlotsHaveNeitherAnswerNorGradient) {
  using A = TypeParam;
  Device device;
  for (const RouterShape& shape : shapes()) {
    const auto logits = logits_for<A>(shape, 8);
    const Routed<A> r(device, shape, logits);
    auto wanted = reference::route(shape, in_double(logits));
    const std::int64_t m = shape.tokens(), width = 5;
    const auto tokens = uniform<A>(m * width, 9, -1, 1), answers = uniform<A>(shape.rows() * width, 10, -1, 1);
    const Tensor rows = poisoned<A>(device, {shape.rows(), width}), y = poisoned<A>(device, {m, width});
    permute_forward(device.compute(), rows, on_device(device, Shape{m, width}, tokens), r.routing);
    const auto moved = on_host<A>(device, rows);
    for (std::size_t i = 0; i < moved.size(); ++i) {
      const std::int32_t token = wanted.token_of_row[i / width];
      ASSERT_EQ(moved[i], token < 0 ? A(0) : tokens[static_cast<std::size_t>(token) * width + i % width]);
    }
    const Tensor of_rows = on_device(device, Shape{shape.rows(), width}, answers);
    combine_forward(device.compute(), y, of_rows, r.routing);
    const auto weight = r.values(r.routing.weight);
    EXPECT_TRUE(test::same_bits(on_host<A>(device, y),
                                reference::sum_slots<A>(shape, wanted, answers, weight, std::size_t{width})));
    const Tensor drows = poisoned<A>(device, {shape.rows(), width}), dweight = poisoned<A>(device, {m, shape.top_k});
    combine_backward(device.compute(), drows, dweight, on_device(device, Shape{m, width}, tokens), of_rows, r.routing);
    const auto dw = on_host<A>(device, dweight), dr = on_host<A>(device, drows);
    for (std::size_t s = 0; s < dw.size(); ++s)
      if (wanted.row_of_slot[s] < 0) { EXPECT_EQ(dw[s], A(0)); }
    for (std::size_t i = 0; i < dr.size(); ++i)
      if (wanted.token_of_row[i / width] < 0) { EXPECT_EQ(dr[i], A(0)) << "no rows are left from before"; }
    const Tensor behind = poisoned<A>(device, {shape.rows(), width});
    clear_rows_behind(device.compute(), behind, r.routing);
    const auto tail = on_host<A>(device, behind);
    for (std::size_t i = 0; i < tail.size(); ++i)
      ASSERT_EQ(tail[i] == A(0), static_cast<std::int32_t>(i / width) >= wanted.offsets.back());
  }
}

TYPED_TEST(Capacity, DroppedSlotsAreCounted) {
  Device device;
  for (const RouterShape& shape : shapes()) {
    SCOPED_TRACE(test::shown(shape.sequences, shape.length, shape.experts, shape.top_k, shape.row_multiple));
    const auto logits = logits_for<TypeParam>(shape, 11);
    const Routed<TypeParam> r(device, shape, logits);
    const Tensor words = on_device(
        device, std::vector<std::int64_t>(static_cast<std::size_t>(RoutingRecord::words(shape.experts)), 3));
    record_routing(device.compute(), shape, r.routing, words, 0);
    const auto rows = reference::route(shape, in_double(logits)).row_of_slot;
    EXPECT_EQ(on_host<std::int64_t>(device, words)[static_cast<std::size_t>(RoutingRecord::dropped(shape.experts))],
              3 + std::ranges::count(rows, -1));
  }
}

/// Each token's experts moved on by one, and those of every third token left.
Integers moved_on(const Integers& expert, const RouterShape& shape) {
  Integers other = expert;
  for (std::size_t s = 0; s < other.size(); ++s)
    if (s / static_cast<std::size_t>(shape.top_k) % 3 != 0)
      other[s] = static_cast<std::int32_t>((other[s] + 1) % shape.experts);
  return other;
}

TYPED_TEST(Capacity, GivenChoicesAreTakenAndWeighedByOwnScores) {
  using A = TypeParam;
  Device device;
  for (RouterShape shape : shapes()) {
    if (shape.capacity == 200) shape.capacity = 0;
    const auto logits = logits_for<A>(shape, 12);
    const Routed<A> own(device, shape, logits);
    const Integers chosen = own.integers(own.routing.expert), other = moved_on(chosen, shape);
    const Routed<A> same(device, shape, logits, {on_device(device, Shape{shape.tokens(), shape.top_k}, chosen), {}});
    for (const Tensor Routing::*part : {&Routing::expert, &Routing::offsets, &Routing::row_of_slot,
                                        &Routing::token_of_row, &Routing::load})
      EXPECT_EQ(same.integers(same.routing.*part), own.integers(own.routing.*part));
    EXPECT_TRUE(test::same_bits(same.values(same.routing.weight), own.values(own.routing.weight)));
    const Routed<A> r(device, shape, logits, {on_device(device, Shape{shape.tokens(), shape.top_k}, other), {}});
    EXPECT_EQ(r.integers(r.routing.expert), other);
    const auto scores = in_double(r.values(r.routing.scores));
    std::vector<double> weight;
    std::int64_t differ = 0;
    const auto k = static_cast<std::size_t>(shape.top_k), experts = static_cast<std::size_t>(shape.experts);
    for (std::size_t s = 0; s < other.size(); ++s) {
      const std::size_t m = s / k;
      double sum = 1e-20;
      std::set<std::int32_t> of_token;
      for (std::size_t j = m * k; j < (m + 1) * k; ++j) {
        sum += scores[m * experts + static_cast<std::size_t>(other[j])];
        of_token.insert(chosen[j]);
      }
      weight.push_back(scores[m * experts + static_cast<std::size_t>(other[s])] / (shape.renormalize ? sum : 1));
      differ += of_token.contains(other[s]) ? 0 : 1;
    }
    EXPECT_TRUE(near(r.values(r.routing.weight), weight, test::tolerance<A>));
    const Tensor count = on_device(device, std::vector<std::int64_t>{4});
    count_differing(device.compute(), shape, r.routing, {}, count.as<std::int64_t>());
    EXPECT_EQ(on_host<std::int64_t>(device, count), std::vector{4 + differ});
    count_differing(device.compute(), shape, own.routing, {}, count.as<std::int64_t>());
    EXPECT_EQ(on_host<std::int64_t>(device, count), std::vector{4 + differ}) << "its own do not";
  }
}

}  // namespace
}  // namespace tessera
