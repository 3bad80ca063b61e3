#include "kernels/moe/moe.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/reference/moe.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/finite_differences.hpp"
#include "tests/support/on_device.hpp"
#include "tests/support/shown.hpp"

namespace tessera {
namespace {

using test::in_double, test::near, test::on_device, test::on_host, test::poisoned, test::uniform;
using Integers = std::vector<std::int32_t>;

constexpr RouterShape shapes[] = {{1, 1, 1, 1, true},   {2, 5, 3, 1, false}, {2, 5, 3, 2, true},  {3, 7, 8, 8, true},
                                  {2, 150, 8, 2, true}, {1, 9, 5, 2, false}, {4, 64, 70, 6, true}};

// A router on the device; A is the type of logits and statistics.
template <class A> struct Router {
  explicit Router(const RouterShape& s) : shape(s), m(s.tokens()), e(s.experts), k(s.top_k) {}

  void route(const std::vector<A>& logits, const std::vector<A>& bias = {}) {
    routing.logits = on_device(device, Shape{m, e}, logits);
    tessera::route(device.compute(), arena, shape, routing, routing.logits,
                   bias.empty() ? Tensor{} : on_device(device, bias));
  }
  Integers integers(const Tensor& t) { return on_host<std::int32_t>(device, t); }
  std::vector<A> values(const Tensor& t) { return on_host<A>(device, t); }
  Tensor i32(Shape s) { return poisoned(device, DType::i32, s); }
  Tensor real(Shape s) { return poisoned<A>(device, s); }
  /// balance, z
  std::vector<double> auxiliary(std::vector<double> before = {0, 0}, const Tensor& counted = {}) {
    const Tensor sums = on_device(device, before);
    auxiliary_losses(device.compute(), arena, shape, routing, sums.as<double>(), sums.as<double>() + 1, counted);
    return on_host<double>(device, sums);
  }

  RouterShape shape;
  std::int64_t m, e, k;
  Device device;
  Arena arena = device.arena(Category::activations, 1 << 20);
  Routing routing{real({m, e}), real({m}), i32({m, k}), real({m, k}), i32({e + 1}), i32({m, k}), i32({shape.rows()}),
                  i32({shape.sequences, e}), real({m}), {}};
};

/// Shapes under all rules: both scores, groups or none, scaled weights, logits of bf16.
std::vector<RouterShape> ruled_shapes() {
  std::vector<RouterShape> all(std::begin(shapes), std::end(shapes));
  all.insert(all.end(), {{2, 9, 33, 4, true}, {1, 5, 256, 8, true}, {1, 6, 12, 5, false}});
  const auto plain = std::ssize(all);
  for (std::ptrdiff_t i = 0; i < plain; ++i)
    for (const Scores scores : {Scores::softmax, Scores::sigmoid})
      for (const std::int64_t groups : {1, 2, 3, 4, 12})
        for (const std::int64_t top : {1, 2, 3}) {
          RouterShape shape = all[static_cast<std::size_t>(i)];
          const std::int64_t each = shape.experts / groups;
          if (shape.tokens() > 32 || each * groups != shape.experts || top > groups || top * each < shape.top_k)
            continue;
          shape.rule = {scores, top == 2 ? DType::bf16 : DType::f32, groups == 1 ? 1.0 : 2.5, groups, top};
          all.push_back(shape);
        }
  return all;
}
/// Small, below -1 and above 1: what is chosen is neither a probability nor positive.
template <class A> std::vector<A> bias_for(const RouterShape& s, double size) {
  return uniform<A>(s.experts, 61, -size, size);
}

template <class A> std::vector<A> logits_for(const RouterShape& s) {
  return uniform<A>(s.tokens() * s.experts, 41, -3, 3);
}

/// Slots that a batch counted by expert: some, and, at the first step, none.
template <class A> std::vector<std::vector<A>> counts_for(const RouterShape& s) {
  std::vector<A> some;
  for (std::int64_t e = 0; e < s.experts; ++e) some.push_back(static_cast<A>(e * 7 % 11 * 1000));
  return {some, std::vector<A>(some.size(), 0)};
}

template <class A> class Route : public ::testing::Test {};
using Statistics = ::testing::Types<double, float>;
TYPED_TEST_SUITE(Route, Statistics);

TYPED_TEST(Route, EqualsReference) {
  for (const RouterShape& shape : ruled_shapes())
    for (const double size : {0.0, 0.2, 3.0}) {
      SCOPED_TRACE(test::shown(shape.sequences, shape.length, shape.experts, shape.top_k, shape.row_multiple, size));
      const auto logits = logits_for<TypeParam>(shape), bias = bias_for<TypeParam>(shape, size);
      Router<TypeParam> r(shape);
      r.route(logits, bias);
      const auto wanted = reference::route(shape, in_double(logits), in_double(bias));
      const double tolerance = test::tolerance<TypeParam>;
      EXPECT_TRUE(near(r.values(r.routing.scores), wanted.scores, tolerance));
      EXPECT_TRUE(near(r.values(r.routing.log_sum), wanted.log_sum, tolerance));
      EXPECT_TRUE(near(r.values(r.routing.weight), wanted.weight, tolerance));
      EXPECT_TRUE(test::same_bits(r.integers(r.routing.expert), wanted.expert));
      EXPECT_TRUE(test::same_bits(r.integers(r.routing.offsets), wanted.offsets));
      EXPECT_TRUE(test::same_bits(r.integers(r.routing.row_of_slot), wanted.row_of_slot));
      EXPECT_TRUE(test::same_bits(r.integers(r.routing.token_of_row), wanted.token_of_row));
      EXPECT_TRUE(test::same_bits(r.integers(r.routing.load), wanted.load));
    }
}

TYPED_TEST(Route, TiesGoToTheLowerIndex) {
  Router<TypeParam> r({1, 3, 4, 3, true});
  r.route({0, 0, 0, 0,  //
           1, 2, 1, 2,  //
           -5, 3, 3, 3});
  EXPECT_TRUE(test::same_bits(r.integers(r.routing.expert), Integers{0, 1, 2, 1, 3, 0, 1, 2, 3}));
}

// Of a token whose scores plus bias are given by `bias` alone.
template <class A>
Integers chosen_by(const std::vector<A>& bias, std::int64_t k, std::int64_t groups, std::int64_t top) {
  RouterShape shape{1, 1, std::ssize(bias), k, true};
  shape.rule = {Scores::sigmoid, DType::f32, 1, groups, top};
  Router<A> r(shape);
  r.route(std::vector<A>(bias.size(), 0), bias);
  return r.integers(r.routing.expert);
}

TYPED_TEST(Route, GroupsCountTheirTwoBest) {
  using List = std::vector<TypeParam>;
  const auto nan = std::numeric_limits<TypeParam>::quiet_NaN();
  EXPECT_EQ(chosen_by(List{3, 0, 2, 2, 1, 1}, 2, 3, 1), (Integers{2, 3})) << "4 of two beat the single best";
  EXPECT_EQ(chosen_by(List{3, 0, 2, 2, 1, 1}, 3, 3, 2), (Integers{0, 2, 3}));
  EXPECT_EQ(chosen_by(List{1, 1, 1, 1, 1, 1}, 3, 3, 2), (Integers{0, 1, 2})) << "ties: the lower group";
  EXPECT_EQ(chosen_by(List{-3, -9, -4, -4, -2, -9}, 2, 3, 1), (Integers{2, 3})) << "below -1";
  EXPECT_EQ(chosen_by(List{5, 7, 6}, 2, 3, 2), (Integers{1, 2})) << "one expert a group";
  EXPECT_EQ(chosen_by(List{nan, 0, 0, 1, 9, nan}, 2, 2, 1), (Integers{4, 3})) << "no sum of NaN";
  EXPECT_EQ(chosen_by(List{nan, 0, nan, 1, nan, 1}, 3, 2, 1), (Integers{3, 5, 1})) << "NaN behind masked experts";
}

// A bias decides what is chosen, and no weight.
TYPED_TEST(Route, BiasChoosesAndDoesNotWeigh) {
  for (const Scores scores : {Scores::softmax, Scores::sigmoid}) {
    RouterShape shape{1, 1, 4, 2, true};
    shape.rule.scores = scores;
    Router<TypeParam> r(shape);
    const std::vector<TypeParam> logits{2, 1, 0, -1};
    r.route(logits, {0, -5, 0, 5});
    EXPECT_EQ(r.integers(r.routing.expert), (Integers{3, 0}));
    const auto s = r.values(r.routing.scores), w = r.values(r.routing.weight);
    const auto own = static_cast<double>(s[3] / (s[3] + s[0]));
    EXPECT_TRUE(near(std::vector{w[0]}, std::vector{own}, test::tolerance<TypeParam>));
    EXPECT_LT(w[0], w[1]) << "the expert chosen first has the smaller score";
  }
}

// Gradients of a bias are counts: of all sequences, onto those of micro-batches before.
TYPED_TEST(Route, LoadIsAddedUp) {
  for (const RouterShape& shape : shapes) {
    SCOPED_TRACE(test::shown(shape.sequences, shape.length, shape.experts, shape.top_k, shape.row_multiple));
    Router<TypeParam> r(shape);
    r.route(logits_for<TypeParam>(shape));
    std::vector<TypeParam> wanted(static_cast<std::size_t>(shape.experts));
    for (const std::int32_t e : r.integers(r.routing.expert)) ++wanted[static_cast<std::size_t>(e)];
    const Tensor n = r.real({shape.experts});
    add_load(r.device.compute(), {n, 0}, shape, r.routing);
    EXPECT_EQ(r.values(n), wanted);
    add_load(r.device.compute(), {n, 1}, shape, r.routing);
    for (TypeParam& one : wanted) one *= 2;
    EXPECT_EQ(r.values(n), wanted);
  }
}

TYPED_TEST(Route, ExpertsWithoutRowsFirstMiddleAndLast) {
  Router<TypeParam> r({1, 4, 5, 1, false});
  std::vector<TypeParam> logits(20, 0);
  for (std::size_t m = 0; m < 4; ++m) logits[m * 5 + (m == 2 ? 3 : 1)] = 4;
  r.route(logits);
  EXPECT_TRUE(test::same_bits(r.integers(r.routing.offsets), Integers{0, 0, 3, 3, 4, 4}));
  EXPECT_TRUE(test::same_bits(r.integers(r.routing.token_of_row), Integers{0, 1, 3, 2}));
  EXPECT_TRUE(test::same_bits(r.integers(r.routing.load), Integers{0, 3, 0, 1, 0}));
}

// Rows of each expert begin at multiples; rows in gaps belong to no token and stay zero.
TYPED_TEST(Route, RowsBeginAtMultiples) {
  for (RouterShape shape : shapes) {
    SCOPED_TRACE(test::shown(shape.sequences, shape.length, shape.experts, shape.top_k, shape.row_multiple));
    const auto logits = logits_for<TypeParam>(shape);
    Router<TypeParam> compact(shape);
    compact.route(logits);
    for (const std::int64_t multiple : {16, 128}) {
      SCOPED_TRACE(test::shown(multiple));
      shape.row_multiple = multiple;
      Router<TypeParam> spread(shape);
      spread.route(logits);
      const Integers begins = compact.integers(compact.routing.offsets), wide = spread.integers(spread.routing.offsets);
      const Integers token = compact.integers(compact.routing.token_of_row);
      Integers wanted(static_cast<std::size_t>(shape.rows()), -1);
      std::int32_t next = 0;
      for (std::int64_t e = 0; e < shape.experts; ++e) {
        const auto at = static_cast<std::size_t>(e);
        EXPECT_EQ(wide[at], next);
        std::copy(token.begin() + begins[at], token.begin() + begins[at + 1], wanted.begin() + next);
        next += static_cast<std::int32_t>((begins[at + 1] - begins[at] + multiple - 1) / multiple * multiple);
      }
      EXPECT_EQ(wide.back(), next);
      EXPECT_LE(next, shape.rows());
      EXPECT_TRUE(test::same_bits(spread.integers(spread.routing.token_of_row), wanted));
      const Integers rows = spread.integers(spread.routing.row_of_slot);
      for (std::size_t slot = 0; slot < rows.size(); ++slot)
        ASSERT_EQ(wanted[static_cast<std::size_t>(rows[slot])], static_cast<std::int32_t>(slot) / shape.top_k);
    }
  }
}

TYPED_TEST(Route, RowsOfNoTokenAreZeroAndNumberedZero) {
  using T = TypeParam;
  Router<T> r({2, 5, 3, 2, true, 16});
  r.route(logits_for<T>(r.shape));
  const std::int64_t width = 7;
  const Tensor x = on_device(r.device, Shape{r.m, width}, uniform<T>(r.m * width, 3, 1, 2));
  const Tensor rows = r.real({r.shape.rows(), width}), drows = r.real({r.shape.rows(), width}),
               dweight = r.real({r.m, r.k});
  permute_forward(r.device.compute(), rows, x, r.routing);
  combine_backward(r.device.compute(), drows, dweight, x, rows, r.routing);
  const Tensor behind = r.real({r.shape.rows(), width});
  clear_rows_behind(r.device.compute(), behind, r.routing);
  const Tensor number = poisoned(r.device, DType::i64, Shape{r.shape.rows()});
  number_rows(r.device.compute(), number, r.routing, 100);
  const Integers token = r.integers(r.routing.token_of_row), slots = r.integers(r.routing.row_of_slot);
  const auto values = r.values(rows), gradients = r.values(drows), tail = r.values(behind);
  const auto numbered = on_host<std::int64_t>(r.device, number);
  const std::int32_t end = r.integers(r.routing.offsets).back();
  std::int64_t others = 0;
  for (std::int64_t row = 0; row < r.shape.rows(); ++row) {
    const auto at = static_cast<std::size_t>(row);
    std::int64_t wanted = 0;
    for (std::size_t slot = 0; slot < slots.size(); ++slot)
      if (slots[slot] == row) wanted = 100 * r.k + static_cast<std::int64_t>(slot);
    EXPECT_EQ(numbered[at], wanted);
    for (std::int64_t c = 0; c < width; ++c) {
      const auto element = static_cast<std::size_t>(row * width + c);
      EXPECT_EQ(values[element] == T(0), token[at] < 0);
      EXPECT_EQ(gradients[element] == T(0), token[at] < 0);
      EXPECT_EQ(tail[element] == T(0), row >= end);
    }
    others += token[at] < 0;
  }
  EXPECT_EQ(others, r.shape.rows() - r.shape.slots());
}

// Arrival on every rank of a group, where pairs of ranks, an expert, or a whole rank may have no rows.
TEST(Arrival, EqualsReference) {
  const auto counts_of = [](int pattern, std::int64_t ranks, std::int64_t experts) {
    Integers counts;
    for (std::int64_t r = 0; r < ranks; ++r)
      for (std::int64_t e = 0; e < experts; ++e)
        counts.push_back(static_cast<std::int32_t>(pattern == 0   ? (3 * r + 5 * e) % 7
                                                   : pattern == 1 ? (e == 0 ? 9 : 0)
                                                   : pattern == 2 ? (r == 0 ? 4 + e : 0)
                                                                  : 0));
    return counts;
  };
  Device device;
  for (const auto& [ranks, experts] : {std::pair{1, 3}, {2, 4}, {3, 6}, {4, 4}})
    for (std::int64_t multiple : {1, 16})
      for (std::int64_t room : {1000, 12})
        for (int pattern = 0; pattern < 4; ++pattern)
          for (std::int64_t place = 0; place < ranks; ++place) {
            const ArrivalShape shape{ranks, place, experts, multiple, 10, room};
            const Integers counts = counts_of(pattern, ranks, experts);
            const reference::Arrived wanted = reference::arrive(shape, counts);
            const auto rows = std::max<std::int64_t>(std::ssize(wanted.token_of_row), multiple);
            const auto i32 = [&](std::int64_t n) { return poisoned(device, DType::i32, Shape{n}); };
            Routing arrival;
            arrival.offsets = i32(shape.held() + 1);
            arrival.row_of_slot = i32(std::ssize(wanted.row_of_slot));
            arrival.token_of_row = i32(rows);
            const Tensor seen = on_device(device, std::vector<double>{0.25, 0});
            arrive(device.compute(), shape, arrival, on_device(device, counts), static_cast<DispatchStats*>(seen.data));
            EXPECT_EQ(on_host<std::int32_t>(device, arrival.offsets), wanted.offsets);
            EXPECT_EQ(on_host<std::int32_t>(device, arrival.row_of_slot), wanted.row_of_slot);
            Integers tokens = wanted.token_of_row;
            tokens.resize(static_cast<std::size_t>(rows), -1);
            EXPECT_EQ(on_host<std::int32_t>(device, arrival.token_of_row), tokens);
            const auto most = on_host<double>(device, seen).front();
            EXPECT_EQ(most, std::max(0.25, wanted.seen.most));
            EXPECT_EQ(std::bit_cast<std::uint64_t>(on_host<double>(device, seen).back()), wanted.seen.refused);
            EXPECT_LE(rows, shape.rows(std::ssize(wanted.row_of_slot)));
          }
}

TYPED_TEST(Route, RowsOfAnExpertAreCounted) {
  for (const RouterShape& shape : shapes) {
    SCOPED_TRACE(test::shown(shape.sequences, shape.length, shape.experts, shape.top_k, shape.row_multiple));
    Router<TypeParam> r(shape);
    r.route(logits_for<TypeParam>(shape));
    const Tensor counts = r.i32({shape.experts});
    count_rows(r.device.compute(), counts, r.routing);
    const Integers offsets = r.integers(r.routing.offsets), found = r.integers(counts);
    for (std::size_t e = 0; e < found.size(); ++e) EXPECT_EQ(found[e], offsets[e + 1] - offsets[e]);
  }
}

// Numbers of rows travel as rows of one column.
TEST(Arrival, RowsOfAnyTypeAreGathered) {
  Device device;
  Routing routing;
  routing.row_of_slot = on_device(device, Shape{3, 1}, Integers{0, 2, 4});
  routing.token_of_row = on_device(device, Integers{0, -1, 1, -1, 2});
  const Tensor rows = poisoned(device, DType::i64, Shape{5, 1});
  permute_forward(device.compute(), rows, on_device(device, Shape{3, 1}, std::vector<std::int64_t>{-7, 1ll << 40, 3}),
                  routing);
  EXPECT_EQ(on_host<std::int64_t>(device, rows), (std::vector<std::int64_t>{-7, 0, 1ll << 40, 0, 3}));
}

TYPED_TEST(Route, NanGivesValidExpertsAndNanWeights) {
  for (std::size_t at : {3, 4, 5}) {
    SCOPED_TRACE(test::shown(at));
    Router<TypeParam> r({1, 3, 3, 2, true});
    auto logits = uniform<TypeParam>(9, 42);
    logits[at] = std::numeric_limits<TypeParam>::quiet_NaN();
    r.route(logits);
    const Tensor weight = r.routing.weight.view({3, 2}), p = r.routing.scores;
    EXPECT_TRUE(test::all_nan(r.values(weight.row_range(1, 1))));
    EXPECT_TRUE(test::all_nan(r.values(p.row_range(1, 1))));
    EXPECT_TRUE(test::all_nan(r.values(r.routing.log_sum.flat(1, 1))));
    for (std::int64_t m : {0, 2}) EXPECT_FALSE(test::all_nan(r.values(weight.row_range(m, 1))));
    EXPECT_TRUE(test::same_bits(r.integers(r.routing.expert.flat(2, 2)), Integers{0, 1}));
    EXPECT_EQ(r.integers(r.routing.offsets).back(), 6);
  }
}

TYPED_TEST(Route, NoTokens) {
  Router<TypeParam> r({0, 7, 4, 2, true});
  r.route({});
  EXPECT_TRUE(test::same_bits(r.integers(r.routing.offsets), Integers(5, 0)));
  EXPECT_EQ(r.auxiliary({3, 4}), (std::vector<double>{3, 4}));
  const Tensor d = r.real({0, 4});
  EXPECT_NO_THROW(route_backward(r.device.compute(), r.shape, d, r.real({0, 2}), r.routing, 1, 1));
}

TYPED_TEST(Route, AuxiliaryLossesAddTheReference) {
  for (const RouterShape& shape : ruled_shapes()) {
    SCOPED_TRACE(test::shown(shape.sequences, shape.length, shape.experts, shape.top_k, shape.row_multiple));
    const auto logits = logits_for<TypeParam>(shape);
    Router<TypeParam> r(shape);
    r.route(logits);
    const auto wanted = reference::auxiliary_losses(shape, reference::route(shape, in_double(logits)));
    const auto sums = r.auxiliary({100, 200});
    EXPECT_TRUE(near(sums, std::vector{100 + wanted.balance, 200 + wanted.z}, test::tolerance<TypeParam>));
    for (const auto& counted : counts_for<TypeParam>(shape)) {
      const auto of_batch =
          reference::auxiliary_losses(shape, reference::route(shape, in_double(logits)), in_double(counted));
      EXPECT_TRUE(near(r.auxiliary({100, 200}, on_device(r.device, counted)),
                       std::vector{100 + of_batch.balance, 200 + of_batch.z}, test::tolerance<TypeParam>));
    }
    EXPECT_EQ(r.auxiliary({100, 200}), sums) << "repeatable";
    auxiliary_losses(r.device.compute(), r.arena, shape, r.routing, nullptr, nullptr);
  }
}

TYPED_TEST(Route, BusiestExpertIsTheReferences) {
  for (const RouterShape& shape : shapes) {
    SCOPED_TRACE(test::shown(shape.sequences, shape.length, shape.experts, shape.top_k, shape.row_multiple));
    const auto logits = logits_for<TypeParam>(shape);
    Router<TypeParam> r(shape);
    r.route(logits);
    const Tensor slots = on_device(r.device, std::vector<double>{100});
    add_busiest_expert(r.device.compute(), shape, r.routing, slots.as<double>());
    const std::int64_t wanted = reference::busiest_expert(shape, reference::route(shape, in_double(logits)));
    EXPECT_EQ(on_host<double>(r.device, slots), std::vector{100 + static_cast<double>(wanted)});
  }
}

TYPED_TEST(Route, BackwardEqualsReference) {
  for (const RouterShape& shape : ruled_shapes()) {
    SCOPED_TRACE(test::shown(shape.sequences, shape.length, shape.experts, shape.top_k, shape.row_multiple));
    const auto logits = logits_for<TypeParam>(shape), dweight = uniform<TypeParam>(shape.slots(), 43);
    const double balance = 0.7 * static_cast<double>(shape.length), z = 0.3;
    Router<TypeParam> r(shape);
    const auto bias = bias_for<TypeParam>(shape, 0.2);
    r.route(logits, bias);
    const Tensor d = r.real({r.m, r.e});
    route_backward(r.device.compute(), shape, d, on_device(r.device, Shape{r.m, r.k}, dweight), r.routing, balance, z);
    const auto routed = reference::route(shape, in_double(logits), in_double(bias));
    const auto wanted = reference::route_backward(shape, routed, in_double(dweight), balance, z);
    EXPECT_TRUE(near(r.values(d), wanted, test::tolerance<TypeParam>));
    for (const auto& counted : counts_for<TypeParam>(shape)) {
      route_backward(r.device.compute(), shape, d, on_device(r.device, Shape{r.m, r.k}, dweight), r.routing, balance, z,
                     on_device(r.device, counted));
      const auto of_batch =
          reference::route_backward(shape, routed, in_double(dweight), balance, z, in_double(counted));
      EXPECT_TRUE(near(r.values(d), of_batch, test::tolerance<TypeParam>));
    }
  }
}

TEST(RouteGradient, IsTheDerivative) {
  std::vector<RouterShape> ruled;
  for (const Scores scores : {Scores::softmax, Scores::sigmoid})
    for (RouterShape shape : {RouterShape{2, 3, 4, 2, true}, RouterShape{2, 3, 4, 2, false},
                              RouterShape{2, 3, 4, 1, false}, RouterShape{2, 3, 8, 3, true}}) {
      shape.rule = {scores, DType::f32, shape.experts == 8 ? 2.5 : 1, shape.experts / 4, 1};
      ruled.push_back(shape);
    }
  for (const RouterShape& shape : ruled) {
    SCOPED_TRACE(test::shown(shape.sequences, shape.length, shape.experts, shape.top_k, shape.row_multiple));
    Router<double> r(shape);
    const auto logits = logits_for<double>(shape), dweight = uniform<double>(shape.slots(), 44);
    const auto bias = bias_for<double>(shape, shape.experts == 8 ? 0.2 : 0);
    const auto value = [&](const std::vector<double>& at) {
      r.route(at, bias);
      const auto sums = r.auxiliary();
      const auto w = r.values(r.routing.weight);
      return std::inner_product(w.begin(), w.end(), dweight.begin(), 0.9 * sums[0] + 0.2 * sums[1]);
    };
    value(logits);
    const Tensor d = r.real({r.m, r.e});
    route_backward(r.device.compute(), shape, d, on_device(r.device, Shape{r.m, r.k}, dweight), r.routing, 0.9, 0.2);
    EXPECT_TRUE(test::derivative_is(value, logits, r.values(d), 1));
  }
}

// Rows of T between tokens and experts.
template <class T> class Permute : public ::testing::Test {};
TYPED_TEST_SUITE(Permute, test::Reals);
constexpr std::int64_t widths[] = {1, 33, 72, 513};

TYPED_TEST(Permute, MovesRowsAndSumsThemInExpertOrder) {
  using T = TypeParam;
  using A = Accumulator<T>;
  for (const RouterShape& shape : shapes)
    for (std::int64_t columns : widths) {
      const auto width = static_cast<std::size_t>(columns);
      Router<A> r(shape);
      r.route(logits_for<A>(shape));
      const auto routed = reference::route(shape, in_double(logits_for<A>(shape)));
      const auto x = uniform<T>(r.m * columns, 45), rows = uniform<T>(shape.slots() * columns, 46);
      const Tensor tokens = on_device(r.device, Shape{r.m, columns}, x);
      const Tensor x_rows = poisoned<T>(r.device, {shape.slots(), columns}), y = poisoned<T>(r.device, {r.m, columns});
      permute_forward(r.device.compute(), x_rows, tokens, r.routing);
      std::vector<T> gathered;
      for (std::int32_t m : routed.token_of_row)
        gathered.insert(gathered.end(), x.begin() + m * columns, x.begin() + (m + 1) * columns);
      EXPECT_TRUE(test::same_bits(on_host<T>(r.device, x_rows), gathered));

      const Tensor in = on_device(r.device, x_rows.shape, rows);
      permute_backward(r.device.compute(), y, in, r.routing);
      const auto sums = reference::sum_slots<T>(shape, routed, rows, {}, width);
      EXPECT_TRUE(test::same_bits(on_host<T>(r.device, y), sums));
      combine_forward(r.device.compute(), y, in, r.routing);
      const auto weight = r.values(r.routing.weight);
      const auto weighted = reference::sum_slots<T>(shape, routed, rows, weight, width);
      EXPECT_TRUE(test::same_bits(on_host<T>(r.device, y), weighted));
      combine_forward(r.device.compute(), y, in, r.routing, tokens);
      const auto with_last = reference::sum_slots<T>(shape, routed, rows, weight, width, {{}, x});
      EXPECT_TRUE(test::same_bits(on_host<T>(r.device, y), with_last));
      permute_backward(r.device.compute(), tokens, in, r.routing, tokens);
      const auto with_first = reference::sum_slots<T>(shape, routed, rows, {}, width, {x, {}});
      EXPECT_TRUE(test::same_bits(on_host<T>(r.device, tokens), with_first)) << "in place";
    }
}

TYPED_TEST(Permute, CombineBackwardEqualsItsFormula) {
  using T = TypeParam;
  using A = Accumulator<T>;
  for (const RouterShape& shape : shapes)
    for (std::int64_t columns : widths) {
      Router<A> r(shape);
      r.route(logits_for<A>(shape));
      const auto width = static_cast<std::size_t>(columns);
      const auto row_of_slot = r.integers(r.routing.row_of_slot);
      const auto weight = r.values(r.routing.weight);
      const auto dy = uniform<T>(r.m * columns, 47), rows = uniform<T>(shape.slots() * columns, 48);
      std::vector<T> dy_rows(rows.size());
      std::vector<double> dweight(row_of_slot.size());
      for (std::size_t s = 0; s < row_of_slot.size(); ++s)
        for (std::size_t c = 0; c < width; ++c) {
          const A g = A(dy[s / static_cast<std::size_t>(r.k) * width + c]);
          const std::size_t at = static_cast<std::size_t>(row_of_slot[s]) * width + c;
          dy_rows[at] = T(weight[s] * g);
          dweight[s] += static_cast<double>(g) * static_cast<double>(rows[at]);
        }
      const Tensor up = on_device(r.device, Shape{r.m, columns}, dy), dw = r.real({r.m, r.k});
      const Tensor in = on_device(r.device, Shape{shape.slots(), columns}, rows), d = poisoned<T>(r.device, in.shape);
      combine_backward(r.device.compute(), d, dw, up, in, r.routing);
      EXPECT_TRUE(test::same_bits(on_host<T>(r.device, d), dy_rows));
      EXPECT_TRUE(near(r.values(dw), dweight, test::tolerance<A>));
      combine_backward(r.device.compute(), in, dw, up, in, r.routing);
      EXPECT_TRUE(test::same_bits(on_host<T>(r.device, in), dy_rows)) << "in place";
      EXPECT_TRUE(near(r.values(dw), dweight, test::tolerance<A>)) << "in place";
    }
}

TYPED_TEST(Permute, NanOfOneRowReachesItsTokenAlone) {
  using T = TypeParam;
  Router<Accumulator<T>> r({1, 3, 4, 2, true});
  r.route(logits_for<Accumulator<T>>(r.shape));
  auto rows = uniform<T>(6, 49);
  const auto row = static_cast<std::size_t>(r.integers(r.routing.row_of_slot)[2]);  // of token 1
  rows[row] = T(std::numeric_limits<float>::quiet_NaN());
  const Tensor y = poisoned<T>(r.device, {3, 1});
  combine_forward(r.device.compute(), y, on_device(r.device, Shape{6, 1}, rows), r.routing);
  for (std::int64_t m = 0; m < 3; ++m) EXPECT_EQ(bool(test::all_nan(on_host<T>(r.device, y.flat(m, 1)))), m == 1);
}

TEST(MoeChecks, RefuseWhatDoesNotFit) {
  Router<float> r({1, 3, 4, 2, true});
  Stream& s = r.device.compute();
  const Tensor three = r.real({3, 5}), six = r.real({6, 5}), w = r.real({4, 5});
  EXPECT_THROW(r.route(std::vector<float>(11)), Error);
  EXPECT_THROW(route(s, r.arena, {1, 3, 4, 5, true}, r.routing, r.real({3, 4})), Error) << "top_k over experts";
  EXPECT_THROW(route(s, r.arena, r.shape, r.routing, poisoned<bf16>(r.device, {3, 4})), Error);
  EXPECT_THROW(r.route(std::vector<float>(12), std::vector<float>(3)), Error) << "a bias for each expert";
  RouterShape grouped = r.shape;
  grouped.rule.groups = 3;
  EXPECT_THROW(route(s, r.arena, grouped, r.routing, r.real({3, 4})), Error) << "groups of equal size";
  grouped.rule.groups = 4;
  EXPECT_THROW(route(s, r.arena, grouped, r.routing, r.real({3, 4})), Error) << "a group of one does not hold two";
  EXPECT_THROW(combine_forward(s, three, six, r.routing, six), Error);
  EXPECT_THROW(gate_forward(s, three, three, r.real({4, 1})), Error);
  EXPECT_THROW(permute_forward(s, three, three, r.routing), Error);
  EXPECT_THROW(combine_forward(s, six, six, r.routing), Error);
  EXPECT_THROW(combine_backward(s, six, r.real({3, 1}), three, six, r.routing), Error);
  EXPECT_THROW(route_backward(s, r.shape, r.real({3, 3}), r.real({3, 2}), r.routing, 1, 1), Error);
  EXPECT_THROW(router_forward(s, r.real({3, 3}), three, {w}), Error);
  EXPECT_THROW(router_input_gradient(s, six, r.real({3, 4}), {w}), Error);
  EXPECT_THROW(router_weight_gradient(s, r.arena, {w, 0}, r.real({3, 4}), six, Accumulation::fused), Error);
}

}  // namespace
}  // namespace tessera
