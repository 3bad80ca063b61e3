#include "kernels/embedding/embedding.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "tests/reference/embedding.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/on_device.hpp"
#include "tests/support/shown.hpp"

namespace tessera {
namespace {

using test::in_double, test::near, test::on_device, test::on_host, test::poisoned, test::uniform;
using Ids = std::vector<std::int32_t>;

// Some tokens often, the last one once, most never.
Ids ids_below(std::int64_t n, std::int32_t vocabulary) {
  Ids ids;
  for (double x : uniform<double>(n, 21, 0, 1)) ids.push_back(static_cast<std::int32_t>(x * x * x * vocabulary));
  if (!ids.empty()) ids[ids.size() / 2] = vocabulary - 1;
  return ids;
}

struct Size {
  std::int64_t rows, columns;
  std::int32_t vocabulary;
};
constexpr Size sizes[] = {{1, 1, 1}, {12, 7, 3}, {600, 33, 300}, {31, 96, 5000}};

template <class T> class Embedding : public ::testing::Test {};
TYPED_TEST_SUITE(Embedding, test::Reals);

TYPED_TEST(Embedding, ForwardEqualsReference) {
  using T = TypeParam;
  Device device;
  for (auto [rows, columns, vocabulary] : sizes)
    for (std::int64_t length : {std::int64_t{0}, std::int64_t{4}, rows}) {
      SCOPED_TRACE(test::shown(rows, columns, vocabulary, length));
      const Ids ids = ids_below(rows, vocabulary);
      const auto tokens = uniform<T>(vocabulary * columns, 1), positions = uniform<T>(length * columns, 2);
      const Tensor places = length == 0 ? Tensor{} : on_device(device, Shape{length, columns}, positions);
      const Tensor y = poisoned<T>(device, {rows, columns});
      const Tensor table = on_device(device, Shape{vocabulary, columns}, tokens);
      embedding_forward(device.compute(), y, on_device(device, ids), {table, places});
      const auto wanted = reference::embedding_forward(ids, in_double(tokens), in_double(positions),
                                                       static_cast<std::size_t>(columns));
      EXPECT_TRUE(near(on_host<T>(device, y), wanted, test::tolerance<T>));
    }
}

TYPED_TEST(Embedding, TokenGradientEqualsReferenceToTheBit) {
  using T = TypeParam;
  using A = Accumulator<T>;
  Device device;
  Arena arena = device.arena(Category::activations, 1 << 20);
  for (auto [rows, columns, vocabulary] : sizes)
    for (float beta : {0.0f, 1.0f, 0.5f}) {
      const Ids ids = ids_below(rows, vocabulary);
      const auto dy = uniform<T>(rows * columns, 3);
      auto wanted = uniform<A>(vocabulary * columns, 4);
      const Shape shape{vocabulary, columns};
      const Gradient d{beta == 0 ? poisoned<A>(device, shape) : on_device(device, shape, wanted), beta};
      embedding_token_gradient(device.compute(), arena, d, on_device(device, ids),
                               on_device(device, Shape{rows, columns}, dy));
      reference::embedding_token_gradient<T>(wanted, beta, ids, dy, static_cast<std::size_t>(columns));
      EXPECT_TRUE(test::same_bits(on_host<A>(device, d.sum), wanted)) << rows << " rows, beta " << beta;
    }
}

TYPED_TEST(Embedding, PositionGradientEqualsReferenceToTheBit) {
  using T = TypeParam;
  using A = Accumulator<T>;
  Device device;
  for (auto [rows, columns, unused] : sizes)
    for (std::int64_t length : {std::int64_t{4}, rows, rows + 3})  // the last: positions that no token stands at
      for (float beta : {0.0f, 1.0f, 0.5f}) {
        const auto dy = uniform<T>(rows * columns, 5);
        auto wanted = uniform<A>(length * columns, 6);
        const Shape shape{length, columns};
        const Gradient d{beta == 0 ? poisoned<A>(device, shape) : on_device(device, shape, wanted), beta};
        embedding_position_gradient(device.compute(), d, on_device(device, Shape{rows, columns}, dy));
        reference::embedding_position_gradient<T>(wanted, beta, dy);
        EXPECT_TRUE(test::same_bits(on_host<A>(device, d.sum), wanted)) << unused;
      }
}

TYPED_TEST(Embedding, NoRows) {
  using T = TypeParam;
  using A = Accumulator<T>;
  Device device;
  Arena arena = device.arena(Category::activations, 1 << 20);
  const Tensor ids = on_device(device, Ids{}), dy = poisoned<T>(device, {0, 7}), tokens = poisoned<T>(device, {3, 7});
  EXPECT_NO_THROW(embedding_forward(device.compute(), dy, ids, {tokens, {}}));
  const Gradient first{poisoned<A>(device, {3, 7}), 0};
  const Gradient second{on_device(device, Shape{3, 7}, std::vector<A>(21, A(2))), 1};
  const Gradient places{poisoned<A>(device, {3, 7}), 0};
  embedding_token_gradient(device.compute(), arena, first, ids, dy);
  embedding_token_gradient(device.compute(), arena, second, ids, dy);
  embedding_position_gradient(device.compute(), places, dy);
  EXPECT_TRUE(test::same_bits(on_host<A>(device, first.sum), std::vector<A>(21, A(0))));
  EXPECT_TRUE(test::same_bits(on_host<A>(device, second.sum), std::vector<A>(21, A(2))));
  EXPECT_TRUE(test::same_bits(on_host<A>(device, places.sum), std::vector<A>(21, A(0))));
}

TYPED_TEST(Embedding, NanReachesItsTokenAlone) {
  using T = TypeParam;
  using A = Accumulator<T>;
  Device device;
  Arena arena = device.arena(Category::activations, 1 << 20);
  auto dy = uniform<T>(4 * 7, 8);
  for (std::size_t j = 14; j < 21; ++j) dy[j] = T(std::numeric_limits<float>::quiet_NaN());
  const Gradient d{poisoned<A>(device, {3, 7}), 0};
  embedding_token_gradient(device.compute(), arena, d, on_device(device, Ids{1, 0, 1, 1}),
                           on_device(device, Shape{4, 7}, dy));
  EXPECT_TRUE(test::all_nan(on_host<A>(device, d.sum.row_range(1, 1))));
  EXPECT_TRUE(near(on_host<A>(device, d.sum.row_range(0, 1)), std::vector<T>(dy.begin() + 7, dy.begin() + 14), 0));
}

TEST(EmbeddingChecks, RefuseWhatDoesNotFit) {
  Device device;
  Stream& s = device.compute();
  Arena arena = device.arena(Category::activations, 1 << 20);
  const Tensor ids = on_device(device, Ids{0, 1}), y = poisoned<float>(device, {2, 3});
  const Tensor wide = poisoned<float>(device, {5, 4}), tokens = poisoned<float>(device, {5, 3});
  EXPECT_THROW(embedding_forward(s, y, ids, {wide, {}}), Error);
  EXPECT_THROW(embedding_forward(s, y, ids, {tokens, wide}), Error);
  EXPECT_THROW(embedding_forward(s, poisoned<float>(device, {3, 3}), ids, {tokens, {}}), Error);
  EXPECT_THROW(embedding_token_gradient(s, arena, {wide, 0}, ids, y), Error);
  EXPECT_THROW(embedding_position_gradient(s, {wide, 0}, y), Error);
  EXPECT_THROW(embedding_position_gradient(s, {poisoned<double>(device, {2, 3}), 0}, y), Error) << "fp32 sums of fp32";
}

}  // namespace
}  // namespace tessera
