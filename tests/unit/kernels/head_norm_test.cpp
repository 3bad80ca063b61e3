#include "kernels/attention/head_norm.hpp"

#include <gtest/gtest.h>

#include "tests/reference/head_norm.hpp"
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

/// In bf16 every element is rounded once.
template <class T>
constexpr double tolerance = std::is_same_v<T, bf16> ? 4e-3 : sum_tolerance<T>;

template <class T>
class HeadNorm : public ::testing::Test {};
using Types = ::testing::Types<double, float, bf16>;
TYPED_TEST_SUITE(HeadNorm, Types);

/// Forward, backward and the weights' gradients against the plain formula.
template <class T>
void meets_the_reference(QkNormOver over) {
  using A = Accumulator<T>;
  const double eps = 1e-3;
  // More tokens than a block of sums; multi-query and grouped; odd sizes.
  for (const AttentionShape& shape : {AttentionShape{2, 19, 3, 1, 10}, AttentionShape{1, 70, 4, 2, 33}}) {
    SCOPED_TRACE(shown(shape.sequences, shape.length, shape.heads, shape.kv_heads, shape.head_dim));
    Device device;
    Arena arena = device.arena(Category::activations, 1 << 20);
    Stream& stream = device.compute();
    const std::int64_t tokens = shape.sequences * shape.length, by = over == QkNormOver::head ? 1 : shape.heads;
    const std::int64_t nq = by * shape.head_dim, nk = over == QkNormOver::head ? nq : shape.kv_heads * shape.head_dim;
    const auto in = uniform<T>(tokens * shape.columns(), 1, -2, 2), dy = uniform<T>(tokens * shape.columns(), 7);
    const auto q = uniform<T>(nq, 5, 0.5, 1.5), k = uniform<T>(nk, 6, 0.5, 1.5);
    const Tensor qkv = on_device(device, {tokens, shape.columns()}, in);
    const Tensor of_q = on_device(device, {nq}, q), of_k = on_device(device, {nk}, k);
    const Tensor y = poisoned<T>(device, qkv.shape);
    const Tensor rstd = poisoned<A>(device, {tokens, qk_norms(shape, over)});
    head_norm_forward(stream, shape, {rstd, qkv, of_q, of_k, eps}, y);
    const auto normed = reference::head_norm_forward(shape, wide(in), wide(q), wide(k), eps);
    EXPECT_TRUE(near_in_norm(on_host<T>(device, y), normed, tolerance<T>));

    const Tensor d = on_device(device, qkv.shape, dy);
    const Tensor dq = poisoned<A>(device, {nq});
    const Tensor dk = on_device(device, {nk}, std::vector<A>(static_cast<std::size_t>(nk), A(2)));
    head_norm_weight_gradients(stream, arena, shape, {rstd, qkv}, d, {dq, 0}, {dk, 1});
    head_norm_backward(stream, shape, {rstd, qkv, of_q, of_k}, d);
    auto wanted = reference::head_norm_backward(shape, wide(dy), wide(in), wide(q), wide(k), eps);
    for (double& sum : wanted.dk) sum += 2;
    EXPECT_TRUE(near_in_norm(on_host<T>(device, d), wanted.dqkv, tolerance<T>));
    EXPECT_TRUE(near_in_norm(on_host<A>(device, dq), wanted.dq, sum_tolerance<A>));
    EXPECT_TRUE(near_in_norm(on_host<A>(device, dk), wanted.dk, sum_tolerance<A>));
  }
}

TYPED_TEST(HeadNorm, HeadsAreNormalisedByThemselves) { meets_the_reference<TypeParam>(QkNormOver::head); }
TYPED_TEST(HeadNorm, OrAllOfATokenTogether) { meets_the_reference<TypeParam>(QkNormOver::width); }

TEST(HeadNormChecks, RefusesWhatDoesNotFit) {
  Device device;
  const AttentionShape shape{1, 4, 4, 2, 8};
  const Tensor qkv = poisoned<float>(device, {4, 64}), rstd = poisoned<float>(device, {4, 6});
  const Tensor weight = poisoned<float>(device, {8}), short_one = poisoned<float>(device, {7});
  EXPECT_NO_THROW(head_norm_forward(device.compute(), shape, {rstd, qkv, weight, weight}, qkv));
  EXPECT_THROW(head_norm_forward(device.compute(), shape, {rstd, qkv, weight, short_one}, qkv), Error);
  EXPECT_THROW(head_norm_forward(device.compute(), shape, {short_one, qkv, weight, weight}, qkv), Error);
  const Tensor two = poisoned<float>(device, {4, 2}), of_q = poisoned<float>(device, {32});
  EXPECT_NO_THROW(head_norm_forward(device.compute(), shape, {two, qkv, of_q, poisoned<float>(device, {16})}, qkv));
  EXPECT_THROW(head_norm_forward(device.compute(), shape, {two, qkv, of_q, of_q}, qkv), Error);
}

}  // namespace
}  // namespace tessera
