#include "kernels/activation/activation.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "tests/reference/activation.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/finite_differences.hpp"
#include "tests/support/on_device.hpp"
#include "tests/support/shown.hpp"

namespace tessera {
namespace {

using test::in_double, test::near, test::on_device, test::on_host, test::poisoned, test::uniform;

constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr std::int64_t counts[] = {1, 15, 33, 4096, 9001};

// Ordinary numbers, and both tails.
template <class T> std::vector<T> spread(std::int64_t n, std::uint64_t seed) {
  auto values = uniform<T>(n, seed, -8, 8);
  const float special[] = {0, -0.0f, 1e-6f, -1e-6f, 30, -30, 200, -200, 1e4f, -1e4f};
  for (std::size_t i = 0; i < std::min(values.size(), std::size(special)); ++i) values[i] = T(special[i]);
  return values;
}

template <class F> std::vector<double> mapped(const std::vector<double>& x, F f) {
  std::vector<double> y;
  std::transform(x.begin(), x.end(), std::back_inserter(y), f);
  return y;
}
std::vector<double> times(const std::vector<double>& a, std::vector<double> b) {
  std::transform(a.begin(), a.end(), b.begin(), b.begin(), std::multiplies<>());
  return b;
}

template <class T> class Activation : public ::testing::Test {};
TYPED_TEST_SUITE(Activation, test::Reals);

TYPED_TEST(Activation, GeluEqualsReference) {
  using T = TypeParam;
  Device device;
  for (std::int64_t n : counts) {
    const auto x = spread<T>(n, 1), dy = uniform<T>(n, 2);
    const Tensor pre = on_device(device, x), y = poisoned<T>(device, {n}), dpre = poisoned<T>(device, {n});
    gelu_forward(device.compute(), y, pre);
    EXPECT_TRUE(near(on_host<T>(device, y), mapped(in_double(x), reference::gelu), test::tolerance<T>));
    const auto wanted = times(in_double(dy), mapped(in_double(x), reference::gelu_slope));
    const Tensor up = on_device(device, dy);
    gelu_backward(device.compute(), dpre, up, pre);
    EXPECT_TRUE(near(on_host<T>(device, dpre), wanted, test::tolerance<T>));
    gelu_backward(device.compute(), up, up, pre);
    EXPECT_TRUE(test::same_bits(on_host<T>(device, up), on_host<T>(device, dpre))) << "in place";
  }
}

// Bits of rows before the end, and memory as it was from there on.
TYPED_TEST(Activation, RowsFromTheEndOnAreLeft) {
  using T = TypeParam;
  Device device;
  Stream& stream = device.compute();
  for (const std::int64_t columns : {1, 24, 33, 520})
    for (const std::int32_t end : {0, 1, 5, 7}) {
      SCOPED_TRACE(test::shown(columns, end));
      const Shape half{7, columns}, whole{7, 2 * columns};
      const Tensor last = on_device(device, std::vector<std::int32_t>{end});
      const Tensor dy = on_device(device, half, uniform<T>(half.elements(), 4));
      const Tensor x = on_device(device, half, spread<T>(half.elements(), 5));
      const Tensor gate_up = on_device(device, whole, uniform<T>(whole.elements(), 6, -4, 4));
      const auto check = [&](Shape shape, const auto& run) {
        const Tensor all = poisoned<T>(device, shape), some = poisoned<T>(device, shape);
        run(all, Tensor{});
        run(some, last);
        std::vector<T> wanted = on_host<T>(device, all);
        const std::vector<T> before = on_host<T>(device, poisoned<T>(device, shape));
        std::copy(before.begin() + end * shape[-1], before.end(), wanted.begin() + end * shape[-1]);
        EXPECT_TRUE(test::same_bits(on_host<T>(device, some), wanted));
      };
      check(half, [&](const Tensor& y, const Tensor& to) { gelu_forward(stream, y, x, to); });
      check(half, [&](const Tensor& y, const Tensor& to) { gelu_backward(stream, y, dy, x, to); });
      check(half, [&](const Tensor& y, const Tensor& to) { swiglu_forward(stream, y, gate_up, to); });
      check(whole, [&](const Tensor& y, const Tensor& to) { swiglu_backward(stream, y, dy, gate_up, to); });
    }
}

/// Relative to the value: gelu(-8) is about -4e-21.
TYPED_TEST(Activation, GeluKeepsItsDigitsInItsTail) {
  using T = TypeParam;
  Device device;
  const auto x = uniform<T>(4096, 3, -8, 0);
  const Tensor y = poisoned<T>(device, {std::ssize(x)});
  gelu_forward(device.compute(), y, on_device(device, x));
  const std::vector<double> wanted = mapped(in_double(x), reference::gelu);
  std::vector<double> share = in_double(on_host<T>(device, y));
  for (std::size_t i = 0; i < share.size(); ++i) share[i] = wanted[i] == 0 ? 1 + share[i] : share[i] / wanted[i];
  EXPECT_TRUE(near(share, std::vector<double>(share.size(), 1.0), test::tolerance<T>));
}

TYPED_TEST(Activation, SlopesOfLargeValuesAreFinite) {
  using T = TypeParam;
  Device device;
  const std::vector<T> x = {T(1e6f), T(-1e6f), T(1e20f), T(-1e20f), T(3e38f), T(-3e38f)};
  const std::vector<T> ones(x.size(), T(1.0f)), wanted = {T(1.0f), T(0.0f), T(1.0f), T(0.0f), T(1.0f), T(0.0f)};
  const Tensor dpre = poisoned<T>(device, {std::ssize(x)});
  gelu_backward(device.compute(), dpre, on_device(device, ones), on_device(device, x));
  EXPECT_TRUE(near(on_host<T>(device, dpre), wanted, 0));
}

TYPED_TEST(Activation, SwigluEqualsReference) {
  using T = TypeParam;
  Device device;
  for (std::int64_t rows : {1, 3})
    for (std::int64_t columns : {1, 17, 640}) {
      SCOPED_TRACE(test::shown(rows, columns));
      const auto in = spread<T>(rows * 2 * columns, 3), dy = uniform<T>(rows * columns, 4);
      const Tensor gate_up = on_device(device, Shape{rows, 2 * columns}, in), y = poisoned<T>(device, {rows, columns});
      swiglu_forward(device.compute(), y, gate_up);
      const auto width = static_cast<std::size_t>(columns);
      EXPECT_TRUE(near(on_host<T>(device, y), reference::swiglu_forward(in_double(in), width), test::tolerance<T>));
      const Tensor d = poisoned<T>(device, gate_up.shape);
      swiglu_backward(device.compute(), d, on_device(device, y.shape, dy), gate_up);
      const auto wanted = reference::swiglu_backward(in_double(dy), in_double(in), width);
      EXPECT_TRUE(near(on_host<T>(device, d), wanted, test::tolerance<T>));
    }
}

TYPED_TEST(Activation, AddRoundsOnce) {
  using T = TypeParam;
  Device device;
  for (std::int64_t n : counts) {
    const auto a = uniform<T>(n, 5), b = uniform<T>(n, 6, -100, 100);
    std::vector<T> sum;
    for (std::size_t i = 0; i < a.size(); ++i) sum.push_back(T(Accumulator<T>(a[i]) + Accumulator<T>(b[i])));
    const Tensor left = on_device(device, a), right = on_device(device, b), y = poisoned<T>(device, {n});
    add(device.compute(), y, left, right);
    EXPECT_TRUE(test::same_bits(on_host<T>(device, y), sum));
    add(device.compute(), right, left, right);
    EXPECT_TRUE(test::same_bits(on_host<T>(device, right), sum)) << "in place";
  }
}

TYPED_TEST(Activation, NanStaysNanAlone) {
  using T = TypeParam;
  Device device;
  Stream& s = device.compute();
  for (std::int64_t at : {0, 16, 32}) {
    std::vector<T> values(33, T(1.0f)), ones = values;
    values[static_cast<std::size_t>(at)] = T(nan);
    const Tensor x = on_device(device, values), one = on_device(device, ones);
    for (int which = 0; which < 5; ++which) {
      const Tensor y = poisoned<T>(device, {33});
      if (which == 0) gelu_forward(s, y, x);
      if (which == 1) gelu_backward(s, y, x, one);
      if (which == 2) gelu_backward(s, y, one, x);
      if (which == 3) add(s, y, x, one);
      if (which == 4) add(s, y, one, x);
      for (std::int64_t i = 0; i < 33; ++i) {
        const auto value = on_host<T>(device, y.flat(i, 1));
        EXPECT_EQ(bool(test::all_nan(value)), i == at) << "kernel " << which << ", element " << i;
      }
    }
  }
  const Tensor gate_up = on_device(device, Shape{3, 4}, std::vector<T>{T(nan), T(1.f), T(1.f), T(1.f),   //
                                                                       T(1.f), T(1.f), T(nan), T(1.f),  //
                                                                       T(1.f), T(1.f), T(1.f), T(1.f)});
  const Tensor y = poisoned<T>(device, {3, 2}), dy = on_device(device, Shape{3, 2}, std::vector<T>(6, T(1.0f)));
  swiglu_forward(s, y, gate_up);
  EXPECT_TRUE(test::all_nan(on_host<T>(device, y.flat(0, 1))));
  EXPECT_TRUE(test::all_nan(on_host<T>(device, y.flat(2, 1))));
  EXPECT_FALSE(test::all_nan(on_host<T>(device, y.row_range(2, 1))));
  const Tensor d = poisoned<T>(device, {3, 4});
  swiglu_backward(s, d, dy, gate_up);
  EXPECT_TRUE(test::all_nan(on_host<T>(device, d.flat(2, 1)))) << "d up of a NaN gate";
  EXPECT_TRUE(test::all_nan(on_host<T>(device, d.flat(4, 1)))) << "d gate of a NaN up";
}

TYPED_TEST(Activation, NothingOfNothing) {
  Device device;
  const Tensor none = poisoned<TypeParam>(device, {0}), rows = poisoned<TypeParam>(device, {0, 4});
  EXPECT_NO_THROW(gelu_forward(device.compute(), none, none));
  EXPECT_NO_THROW(gelu_backward(device.compute(), none, none, none));
  EXPECT_NO_THROW(add(device.compute(), none, none, none));
  EXPECT_NO_THROW(swiglu_forward(device.compute(), poisoned<TypeParam>(device, {0, 2}), rows));
  EXPECT_NO_THROW(swiglu_backward(device.compute(), rows, poisoned<TypeParam>(device, {0, 2}), rows));
}

TEST(ActivationGradients, AreTheDerivatives) {
  Device device;
  Stream& s = device.compute();
  const auto dy = uniform<double>(24, 8);
  const Tensor up = on_device(device, Shape{4, 6}, dy), y = poisoned<double>(device, {4, 6});
  const auto value = [&] {
    const auto out = on_host<double>(device, y);
    return std::inner_product(out.begin(), out.end(), dy.begin(), 0.0);
  };
  const auto x = uniform<double>(24, 9, -4, 4), pairs = uniform<double>(48, 10, -4, 4);
  const Tensor d = poisoned<double>(device, {4, 6}), d2 = poisoned<double>(device, {4, 12});
  gelu_backward(s, d, up, on_device(device, Shape{4, 6}, x));
  swiglu_backward(s, d2, up, on_device(device, Shape{4, 12}, pairs));
  const auto gelu = [&](const std::vector<double>& at) {
    gelu_forward(s, y, on_device(device, Shape{4, 6}, at));
    return value();
  };
  const auto swiglu = [&](const std::vector<double>& at) {
    swiglu_forward(s, y, on_device(device, Shape{4, 12}, at));
    return value();
  };
  EXPECT_TRUE(test::derivative_is(gelu, x, on_host<double>(device, d), 1));
  EXPECT_TRUE(test::derivative_is(swiglu, pairs, on_host<double>(device, d2), 2));
}

TEST(ActivationChecks, RefuseWhatDoesNotFit) {
  Device device;
  Stream& s = device.compute();
  const Tensor four = poisoned<float>(device, {2, 2}), five = poisoned<float>(device, {5});
  EXPECT_THROW(gelu_forward(s, four, five), Error);
  EXPECT_THROW(gelu_backward(s, four, five, four), Error);
  EXPECT_THROW(add(s, four, four, five), Error);
  EXPECT_THROW(swiglu_forward(s, four, four), Error);
  EXPECT_THROW(swiglu_backward(s, four, four, poisoned<float>(device, {2, 4})), Error);
  EXPECT_THROW(add(s, four, four, poisoned<double>(device, {2, 2})), Error);
}

}  // namespace
}  // namespace tessera
