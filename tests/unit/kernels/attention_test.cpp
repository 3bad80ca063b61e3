#include "kernels/attention/attention.hpp"

#include <gtest/gtest.h>

#include "tests/reference/attention.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/norm.hpp"
#include "tests/support/on_device.hpp"
#include "tests/support/shown.hpp"

namespace tessera {
namespace {

using namespace test;

template <class T>
std::vector<double> wide(const std::vector<T>& v) {
  return {v.begin(), v.end()};
}

/// Columns [begin, begin + count) of a matrix.
template <class V>
std::vector<V> columns(const std::vector<V>& matrix, std::int64_t width, std::int64_t begin, std::int64_t count) {
  std::vector<V> part;
  for (std::size_t row = 0; row < matrix.size(); row += static_cast<std::size_t>(width))
    for (std::int64_t j = begin; j < begin + count; ++j) part.push_back(matrix[row + static_cast<std::size_t>(j)]);
  return part;
}

template <class T>
struct Case {
  using A = Accumulator<T>;
  AttentionShape shape;
  Device device;
  Stream& stream = device.compute();
  Arena arena = device.arena(Category::activations, 64 << 20);
  std::int64_t tokens = shape.sequences * shape.length, out_columns = shape.heads * shape.head_dim;
  Tensor qkv = on_device(device, {tokens, shape.columns()}, uniform<T>(tokens* shape.columns(), 1, -2, 2));
  Tensor dout = on_device(device, {tokens, out_columns}, uniform<T>(tokens* out_columns, 2));
  Tensor out = poisoned<T>(device, {tokens, out_columns});
  Tensor lse = poisoned<A>(device, {shape.sequences, shape.heads, shape.length});
  Tensor dqkv = poisoned<T>(device, {tokens, shape.columns()});

  explicit Case(const AttentionShape& s) : shape(s) {}
  void run() {
    attention_forward(stream, arena, shape, {out, lse, qkv});
    attention_backward(stream, arena, shape, {out, lse, qkv}, dqkv, dout);
  }
};

template <class T>
class Attention : public ::testing::Test {};
using Types = ::testing::Types<double, float, bf16>;
TYPED_TEST_SUITE(Attention, Types);

// One token; odd sizes; multi-query; grouped; more than a block; more than a strip of keys; heads of 64 and 128, of
// which GPUs have kernels of their own.
constexpr AttentionShape shapes[] = {{1, 1, 1, 1, 4},     {2, 7, 3, 3, 5},     {3, 33, 4, 1, 16},   {2, 129, 4, 2, 32},
                                     {1, 256, 2, 2, 64},  {1, 660, 2, 1, 8},   {2, 200, 4, 2, 64},  {3, 385, 3, 3, 64},
                                     {2, 1, 2, 1, 64},    {40, 70, 6, 2, 64},  {1, 130, 2, 1, 128}, {1, 256, 2, 2, 128},
                                     {2, 200, 4, 2, 128}, {3, 385, 3, 3, 128}, {2, 1, 2, 1, 128},   {30, 70, 6, 2, 128},
                                     {70000, 2, 1, 1, 5}};

TYPED_TEST(Attention, AgreesWithTheReference) {
  using T = TypeParam;
  using A = Accumulator<T>;
  for (const AttentionShape& shape : shapes) {
    SCOPED_TRACE(shown(shape.sequences, shape.length, shape.heads, shape.kv_heads, shape.head_dim));
    Case<T> c(shape);
    c.run();
    const auto qkv = wide(on_host<T>(c.device, c.qkv)), dout = wide(on_host<T>(c.device, c.dout));
    const reference::Attention expected = reference::attention_forward(shape, qkv);
    EXPECT_TRUE(near_in_norm(on_host<T>(c.device, c.out), expected.out, attention_tolerance<T>));
    EXPECT_TRUE(near_in_norm(on_host<A>(c.device, c.lse), expected.lse, sum_tolerance<A>));
    const auto got = on_host<T>(c.device, c.dqkv);
    const auto gradient = reference::attention_backward(shape, dout, qkv);
    if (shape.length == 1)
      continue;  // one key: its weight is always 1, and gradients of q and k are rounding errors only
    const std::int64_t q = shape.heads * shape.head_dim, kv = shape.kv_heads * shape.head_dim;
    const auto close = [&](std::int64_t begin, std::int64_t count) {
      return near_in_norm(columns(got, shape.columns(), begin, count), columns(gradient, shape.columns(), begin, count),
                          2 * attention_tolerance<T>);
    };
    EXPECT_TRUE(close(0, q)) << "dq";
    EXPECT_TRUE(close(q, kv)) << "dk";
    EXPECT_TRUE(close(q + kv, kv)) << "dv";
  }
}

TYPED_TEST(Attention, ATokenSeesNoneAfterIt) {
  using T = TypeParam;
  const AttentionShape shape{1, 140, 2, 1, 8};
  Case<T> c(shape);
  c.run();
  const auto before = on_host<T>(c.device, c.out);
  auto changed = on_host<T>(c.device, c.qkv);
  const std::int64_t cut = 131;
  for (auto i = static_cast<std::size_t>(cut * shape.columns()); i < changed.size(); ++i) changed[i] = T(3.0f);
  c.device.upload(c.stream, c.qkv, changed.data());
  c.run();
  const auto after = on_host<T>(c.device, c.out);
  const auto kept = static_cast<std::size_t>(cut * c.out_columns);
  EXPECT_TRUE(same_bits(std::span(after).first(kept), std::span(before).first(kept)));
  EXPECT_FALSE(same_bits(std::span(after).subspan(kept), std::span(before).subspan(kept)));
}

/// Heads of 16, of a size that GPUs leave to cuDNN, and of 128, whose blocks add to the same gradients.
TYPED_TEST(Attention, EqualOperandsGiveEqualBits) {
  using T = TypeParam;
  for (const AttentionShape& shape : {AttentionShape{3, 150, 4, 2, 16}, {2, 129, 4, 2, 32}, {2, 500, 4, 2, 128}}) {
    SCOPED_TRACE(shown(shape.sequences, shape.length, shape.heads, shape.kv_heads, shape.head_dim));
    Case<T> c(shape);
    c.run();
    const auto out = on_host<T>(c.device, c.out), dqkv = on_host<T>(c.device, c.dqkv);
    for (int repeat = 0; repeat < 3; ++repeat) {
      c.run();
      EXPECT_TRUE(same_bits(on_host<T>(c.device, c.out), out)) << shape.head_dim;
      EXPECT_TRUE(same_bits(on_host<T>(c.device, c.dqkv), dqkv)) << shape.head_dim;
    }
    // A sequence's bits do not depend on the other sequences of the batch.
    const AttentionShape alone{1, shape.length, shape.heads, shape.kv_heads, shape.head_dim};
    const std::int64_t tokens = shape.length;
    const Tensor lse = c.lse.flat(0, shape.heads * tokens), second = c.qkv.row_range(tokens, tokens);
    attention_forward(c.stream, c.arena, alone, {c.out.row_range(0, tokens), lse, second});
    const auto one = on_host<T>(c.device, c.out.row_range(0, tokens));
    EXPECT_TRUE(same_bits(one, std::span(out).subspan(one.size(), one.size()))) << shape.head_dim;
  }
}

TYPED_TEST(Attention, NoSequencesGiveNothing) {
  Case<TypeParam> c({0, 150, 4, 2, 16});
  c.run();
}

/// One sequence alone, and many like it. They are enough of everything that each block of a GPU's kernels works on
/// several heads. At times each has less to do than its threads could.
struct Repeated {
  explicit Repeated(const AttentionShape& s) : all(s), one({1, s.length, s.heads, s.kv_heads, s.head_dim}) {
    repeat(all.qkv, one.qkv), repeat(all.dout, one.dout);
    all.run(), one.run();
  }
  void repeat(const Tensor& to, const Tensor& from) {
    const auto part = on_host<bf16>(one.device, from);
    std::vector<bf16> whole;
    for (std::int64_t s = 0; s < all.shape.sequences; ++s) whole.insert(whole.end(), part.begin(), part.end());
    all.device.upload(all.stream, to, whole.data());
  }
  void expect_equal(const Tensor& many, const Tensor& alone) {
    const auto expected = on_host<bf16>(one.device, alone), got = on_host<bf16>(all.device, many);
    for (std::size_t s = 0; s < static_cast<std::size_t>(all.shape.sequences); ++s)
      ASSERT_TRUE(same_bits(std::span(got).subspan(s * expected.size(), expected.size()), expected)) << s;
  }
  Case<bf16> all, one;
};

TEST(AttentionChecks, GradientsDoNotDependOnOtherSequences) {
  for (const AttentionShape& shape : {AttentionShape{60, 330, 4, 2, 64}, AttentionShape{40, 700, 2, 1, 64},
                                      AttentionShape{20, 330, 4, 2, 128}, AttentionShape{14, 700, 2, 2, 128}}) {
    Repeated r(shape);
    r.expect_equal(r.all.out, r.one.out);
    r.expect_equal(r.all.dqkv, r.one.dqkv);
  }
}

TYPED_TEST(Attention, LargeScoresDoNotOverflow) {
  using T = TypeParam;
  const AttentionShape shape{1, 9, 1, 1, 4};
  Case<T> c(shape);
  const auto large = uniform<T>(9 * shape.columns(), 3, -100, 100);
  c.device.upload(c.stream, c.qkv, large.data());
  c.run();
  const auto expected = reference::attention_forward(shape, wide(large));
  EXPECT_TRUE(near_in_norm(on_host<T>(c.device, c.out), expected.out, attention_tolerance<T>));
}

TEST(AttentionChecks, ADryPassCountsAndMeasures) {
  Device device(Device::Kind::measuring);
  Arena arena = device.arena(Category::activations, 0);
  const AttentionShape shape{2, 300, 4, 2, 32};
  const auto make = [&](DType type, std::int64_t n) { return device.allocate(Category::activations, type, {n}); };
  const Tensor qkv = make(DType::bf16, 600 * shape.columns()), out = make(DType::bf16, 600 * 128),
               lse = make(DType::f32, 2400);
  attention_forward(device.compute(), arena, shape, {out, lse, qkv});
  attention_backward(device.compute(), arena, shape, {out, lse, qkv}, qkv, out);
  EXPECT_EQ(device.tape().flops, 7 * 2.0 * (300 * 301 / 2) * 32 * 2 * 4);
  EXPECT_GT(arena.peak(), 0);
}

TEST(AttentionChecks, RefusesWhatDoesNotFit) {
  Case<float> c({1, 4, 4, 2, 8});
  EXPECT_THROW(attention_forward(c.stream, c.arena, {1, 4, 4, 3, 8}, {c.out, c.lse, c.qkv}), Error);
  EXPECT_THROW(attention_forward(c.stream, c.arena, {1, 5, 4, 2, 8}, {c.out, c.lse, c.qkv}), Error);
  EXPECT_THROW(attention_forward(c.stream, c.arena, c.shape, {c.out, c.out, c.qkv}), Error);
  const Tensor odd = poisoned<float>(c.device, {4, 7});
  EXPECT_THROW(rotary_table(c.stream, odd, 10000), Error);
  EXPECT_THROW(rotary(c.stream, c.shape, c.qkv, odd, Rotation::forward), Error);
  const Tensor wide = poisoned<float>(c.device, {4, 10}), longer = poisoned<float>(c.device, {5, 8});
  EXPECT_THROW(rotary(c.stream, c.shape, c.qkv, wide, Rotation::forward), Error);
  EXPECT_THROW(rotary(c.stream, c.shape, c.qkv, longer, Rotation::forward), Error);
}

TYPED_TEST(Attention, RotaryTurnsPairsAndTurnsThemBack) {
  using T = TypeParam;
  using A = Accumulator<T>;
  const double base = 10000;
  Device device;
  Stream& stream = device.compute();
  // Whole heads, and the first half, less, or a part that no vector ends with.
  for (const auto& [dim, turned] : {std::pair<int, int>{10, 10}, {48, 48}, {48, 24}, {64, 32}, {10, 6}, {24, 2}}) {
    const AttentionShape shape{2, 19, 3, 1, dim};
    SCOPED_TRACE(shown(dim, turned));
    const auto values = uniform<T>(2 * 19 * shape.columns(), 4);
    const Tensor qkv = on_device(device, {2 * 19, shape.columns()}, values);
    const Tensor table = poisoned<A>(device, {19, turned});
    rotary_table(stream, table, base);
    std::vector<A> rounded;
    for (double v : reference::rotary_table(19, turned, base)) rounded.push_back(static_cast<A>(v));
    EXPECT_TRUE(near(on_host<A>(device, table), rounded, std::is_same_v<A, float> ? 1e-7 : 1e-14));
    rotary(stream, shape, qkv, table, Rotation::forward);
    EXPECT_TRUE(rounded_once(on_host<T>(device, qkv), reference::rotary(shape, wide(values), turned, base, 1)));
    const auto there = wide(on_host<T>(device, qkv));
    rotary(stream, shape, qkv, table, Rotation::inverse);
    EXPECT_TRUE(rounded_once(on_host<T>(device, qkv), reference::rotary(shape, there, turned, base, -1)));
  }
}

TEST(AttentionChecks, RotaryScalingIsLlama3s) {
  Device device;
  const RopeScaling scaling{8, 1, 4, 64};
  const Tensor table = poisoned<double>(device, {40, 16});
  rotary_table(device.compute(), table, 500, scaling);
  const auto wanted = reference::rotary_table(40, 16, 500, scaling), plain = reference::rotary_table(40, 16, 500);
  EXPECT_TRUE(near(on_host<double>(device, table), wanted, 1e-13));
  // All three kinds of pairs are there: left alone, slowed down in part, and by the whole factor.
  const auto moved = [&](std::int64_t j, double by) {
    const auto slower = reference::rotary_table(40, 16, 500, {});
    const double angle = std::asin(wanted[static_cast<std::size_t>(16 + 8 + j)]);
    return std::abs(angle * by - std::asin(slower[static_cast<std::size_t>(16 + 8 + j)])) < 1e-12;
  };
  EXPECT_TRUE(moved(0, 1));
  EXPECT_TRUE(moved(7, 8));
  EXPECT_FALSE(moved(2, 1) || moved(2, 8));
  EXPECT_NE(wanted, plain);
  EXPECT_THROW(rotary_table(device.compute(), table, 500, {8, 4, 4, 64}), Error);
}

/// A sequence's attention by attention_extend, in pieces of these sizes.
template <class T>
std::vector<T> extended(Case<T>& c, std::vector<std::int64_t> pieces) {
  const Tensor cache = poisoned<T>(c.device, {c.tokens + 3, 2 * c.shape.kv_heads * c.shape.head_dim});
  const Tensor out = poisoned<T>(c.device, {c.tokens, c.out_columns});
  std::int64_t first = 0;
  for (const std::int64_t some : pieces) {
    AttentionShape shape = c.shape;
    shape.length = some;
    attention_extend(c.stream, c.arena, shape, out.row_range(first, some), cache, c.qkv.row_range(first, some), first);
    first += some;
  }
  EXPECT_EQ(first, c.tokens);
  return on_host<T>(c.device, out);
}

TYPED_TEST(Attention, ASequenceMayComeInPieces) {
  using T = TypeParam;
  for (const AttentionShape& shape : {AttentionShape{1, 1, 1, 1, 2}, AttentionShape{1, 37, 6, 2, 10},
                                      AttentionShape{1, 70, 4, 1, 33}}) {
    Case<T> c(shape);
    const auto whole = extended(c, {shape.length});
    EXPECT_TRUE(near_in_norm(whole, reference::attention_forward(shape, wide(on_host<T>(c.device, c.qkv))).out,
                             attention_tolerance<T>));
    EXPECT_TRUE(same_bits(whole, extended(c, std::vector<std::int64_t>(static_cast<std::size_t>(shape.length), 1))));
    if (shape.length > 30) {
      EXPECT_TRUE(same_bits(whole, extended(c, {16, 1, 13, shape.length - 30})));
    }
  }
}

TEST(AttentionChecks, ASequenceEndsWithItsRoom) {
  Case<float> c({1, 4, 4, 2, 8});
  const Tensor cache = poisoned<float>(c.device, {5, 32});
  EXPECT_NO_THROW(attention_extend(c.stream, c.arena, c.shape, c.out, cache, c.qkv, 1));
  EXPECT_THROW(attention_extend(c.stream, c.arena, c.shape, c.out, cache, c.qkv, 2), Error);
  EXPECT_THROW(attention_extend(c.stream, c.arena, {2, 2, 4, 2, 8}, c.out, cache, c.qkv, 0), Error);
}

}  // namespace
}  // namespace tessera
