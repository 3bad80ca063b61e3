// Attention within documents, rotary positions and position embeddings counted from each document's start.
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/attention/attention.hpp"
#include "kernels/embedding/embedding.hpp"
#include "tests/reference/attention.hpp"
#include "tests/reference/embedding.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/norm.hpp"
#include "tests/support/on_device.hpp"
#include "tests/support/shown.hpp"

namespace tessera {
namespace {

using namespace test;
using Positions = std::vector<std::int32_t>;

template <class T>
constexpr double attention_tolerance = std::is_same_v<T, bf16> ? 6e-3 : sum_tolerance<T>;

template <class T>
std::vector<double> wide(const std::vector<T>& v) {
  return {v.begin(), v.end()};
}

/// Positions of sequences whose documents have drawn lengths of up to `longest` tokens.
Positions drawn_positions(std::int64_t sequences, std::int64_t length, std::int64_t longest, int seed) {
  const auto draws = uniform<double>(sequences * length, seed, 0, 1);
  Positions positions;
  for (std::int64_t s = 0; s < sequences; ++s) {
    std::int64_t left = 0;
    for (std::int64_t t = 0; t < length; ++t, --left) {
      const bool begins = t == 0 || left == 0;
      if (begins) left = 1 + static_cast<std::int64_t>(draws[positions.size()] * static_cast<double>(longest));
      positions.push_back(begins ? 0 : positions.back() + 1);
    }
  }
  return positions;
}

template <class T>
struct Case {
  using A = Accumulator<T>;
  AttentionShape shape;
  Positions at;
  Device device;
  Stream& stream = device.compute();
  Arena arena = device.arena(Category::activations, 64 << 20);
  std::int64_t tokens = shape.sequences * shape.length, out_columns = shape.heads * shape.head_dim;
  Tensor qkv = on_device(device, {tokens, shape.columns()}, uniform<T>(tokens* shape.columns(), 1, -2, 2));
  Tensor dout = on_device(device, {tokens, out_columns}, uniform<T>(tokens* out_columns, 2));
  Tensor positions = on_device(device, at);
  Tensor out = poisoned<T>(device, {tokens, out_columns});
  Tensor lse = poisoned<A>(device, {shape.sequences, shape.heads, shape.length});
  Tensor dqkv = poisoned<T>(device, {tokens, shape.columns()});

  Case(const AttentionShape& s, Positions p) : shape(s), at(std::move(p)) {}
  void run() {
    attention_forward(stream, arena, shape, {out, lse, qkv, positions});
    attention_backward(stream, arena, shape, {out, lse, qkv, positions}, dqkv, dout);
  }
};

template <class T>
class DocumentAttention : public ::testing::Test {};
using Types = ::testing::Types<double, float, bf16>;
TYPED_TEST_SUITE(DocumentAttention, Types);

/// Within a block of queries, over blocks, over strips of keys; heads of 64 and 128, of which GPUs have other kernels
/// for whole sequences.
constexpr AttentionShape shapes[] = {{2, 7, 3, 3, 5},     {3, 33, 4, 1, 16},  {2, 129, 4, 2, 32}, {1, 256, 2, 2, 64},
                                     {2, 660, 2, 1, 8},   {1, 1300, 2, 1, 8}, {1, 130, 2, 1, 128}, {2, 385, 3, 3, 64}};

TYPED_TEST(DocumentAttention, AgreesWithTheReference) {
  using T = TypeParam;
  using A = Accumulator<T>;
  for (const AttentionShape& shape : shapes)
    for (const std::int64_t longest : {std::int64_t{3}, shape.length / 2, 2 * shape.length}) {
      Case<T> c(shape, drawn_positions(shape.sequences, shape.length, longest, static_cast<int>(longest)));
      c.run();
      const auto qkv = wide(on_host<T>(c.device, c.qkv)), dout = wide(on_host<T>(c.device, c.dout));
      const reference::Attention expected = reference::attention_forward(shape, qkv, c.at);
      EXPECT_TRUE(near_in_norm(on_host<T>(c.device, c.out), expected.out, attention_tolerance<T>));
      EXPECT_TRUE(near_in_norm(on_host<A>(c.device, c.lse), expected.lse, sum_tolerance<A>));
      EXPECT_TRUE(near_in_norm(on_host<T>(c.device, c.dqkv), reference::attention_backward(shape, dout, qkv, c.at),
                               2 * attention_tolerance<T>))
          << shape.length << " tokens, documents up to " << longest;
    }
}

TYPED_TEST(DocumentAttention, ADocumentSeesNoOther) {
  using T = TypeParam;
  for (const std::int64_t begin : {1, 60, 128, 513, 600}) {
    const AttentionShape shape{1, 660, 2, 1, 8};
    Positions positions;
    for (std::int64_t t = 0; t < shape.length; ++t)
      positions.push_back(static_cast<std::int32_t>(t < begin ? t : t - begin));
    Case<T> c(shape, positions);
    c.run();
    const auto out = on_host<T>(c.device, c.out), dqkv = on_host<T>(c.device, c.dqkv);
    auto changed = on_host<T>(c.device, c.qkv);
    for (std::int64_t i = 0; i < begin * shape.columns(); ++i) changed[static_cast<std::size_t>(i)] = T(3.0f);
    c.device.upload(c.stream, c.qkv, changed.data());
    c.run();
    const auto later_out = on_host<T>(c.device, c.out), later = on_host<T>(c.device, c.dqkv);
    const auto rows = static_cast<std::size_t>(begin);
    const std::size_t cut = rows * static_cast<std::size_t>(c.out_columns);
    const std::size_t cut_of_all = rows * static_cast<std::size_t>(shape.columns());
    EXPECT_TRUE(same_bits(std::span(later_out).subspan(cut), std::span(out).subspan(cut))) << begin;
    EXPECT_TRUE(same_bits(std::span(later).subspan(cut_of_all), std::span(dqkv).subspan(cut_of_all))) << begin;
    EXPECT_FALSE(same_bits(std::span(later_out).first(cut), std::span(out).first(cut))) << begin;
  }
}

TYPED_TEST(DocumentAttention, RotaryCountsFromEachDocument) {
  using T = TypeParam;
  const double base = 10000;
  Device device;
  for (const AttentionShape& shape : {AttentionShape{2, 19, 3, 1, 10}, AttentionShape{2, 19, 3, 1, 48}}) {
    SCOPED_TRACE(shown(shape.sequences, shape.length, shape.heads, shape.kv_heads, shape.head_dim));
    const auto values = uniform<T>(2 * 19 * shape.columns(), 4);
    const Positions at = drawn_positions(2, 19, 8, 5);
    const Tensor qkv = on_device(device, {2 * 19, shape.columns()}, values);
    const Tensor table = poisoned<Accumulator<T>>(device, {19, shape.head_dim}), positions = on_device(device, at);
    rotary_table(device.compute(), table, base);
    rotary(device.compute(), shape, qkv, table, Rotation::forward, positions);
    const std::int64_t dims = shape.head_dim;
    EXPECT_TRUE(rounded_once(on_host<T>(device, qkv), reference::rotary(shape, wide(values), dims, base, 1, at)));
    const auto turned = wide(on_host<T>(device, qkv));
    rotary(device.compute(), shape, qkv, table, Rotation::inverse, positions);
    EXPECT_TRUE(rounded_once(on_host<T>(device, qkv), reference::rotary(shape, turned, dims, base, -1, at)));
  }
}

TYPED_TEST(DocumentAttention, EmbeddingsAreOfPlacesInDocuments) {
  using T = TypeParam;
  constexpr std::int64_t length = 19, rows = 3 * length, width = 24, vocabulary = 11;
  Device device;
  const Positions at = drawn_positions(3, length, 8, 6);
  Positions ids;
  for (double x : uniform<double>(rows, 7, 0, 1)) ids.push_back(static_cast<std::int32_t>(x * vocabulary));
  const auto tokens = uniform<T>(vocabulary * width, 8), table = uniform<T>(length * width, 9);
  const Tensor y = poisoned<T>(device, {rows, width});
  embedding_forward(device.compute(), y, on_device(device, ids),
                    {on_device(device, {vocabulary, width}, tokens), on_device(device, {length, width}, table)},
                    on_device(device, at));
  std::vector<double> wanted;
  for (std::size_t i = 0; i < static_cast<std::size_t>(rows * width); ++i) {
    const std::size_t row = i / width, column = i % width;
    wanted.push_back(static_cast<double>(tokens[static_cast<std::size_t>(ids[row]) * width + column]) +
                     static_cast<double>(table[static_cast<std::size_t>(at[row]) * width + column]));
  }
  EXPECT_TRUE(rounded_once(on_host<T>(device, y), wanted));
}

TEST(DocumentAttentionChecks, RefusesPositionsThatDoNotFit) {
  Case<float> c({2, 8, 2, 1, 4}, drawn_positions(2, 8, 3, 1));
  const Tensor few = c.positions.flat(0, 15);
  EXPECT_THROW(attention_forward(c.stream, c.arena, c.shape, {c.out, c.lse, c.qkv, few}), Error);
  EXPECT_THROW(attention_backward(c.stream, c.arena, c.shape, {c.out, c.lse, c.qkv, few}, c.dqkv, c.dout), Error);
  EXPECT_THROW(attention_forward(c.stream, c.arena, c.shape, {c.out, c.lse, c.qkv, c.lse}), Error);
}

}  // namespace
}  // namespace tessera
