// The products of a router and of a gate.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/moe/moe.hpp"
#include "tests/reference/gemm.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/on_device.hpp"
#include "tests/support/shown.hpp"

namespace tessera {
namespace {

using test::in_double, test::near, test::on_device, test::on_host, test::poisoned, test::uniform;

template <class T> class RouterProducts : public ::testing::Test {};
TYPED_TEST_SUITE(RouterProducts, test::Reals);

TYPED_TEST(RouterProducts, EqualReference) {
  using T = TypeParam;
  using A = Accumulator<T>;
  Device device;
  Stream& s = device.compute();
  Arena arena = device.arena(Category::activations, 1 << 20);
  for (auto [m, e, c] : {std::array<std::int64_t, 3>{0, 4, 7}, {1, 1, 1}, {5, 3, 33}, {600, 8, 96}, {7, 70, 600}}) {
    const reference::Linear size{m, e, c};
    const auto x = uniform<T>(m * c, 51), w = uniform<T>(e * c, 52, -0.1, 0.1), old = uniform<T>(m * c, 53);
    const auto d = uniform<A>(m * e, 54, -0.1, 0.1), sum = uniform<A>(e * c, 55);
    const Tensor tx = on_device(device, Shape{m, c}, x), td = on_device(device, Shape{m, e}, d);
    const Tensor tw = on_device(device, Shape{e, c}, w);
    const Tensor logits = poisoned<A>(device, {m, e}), dx = on_device(device, Shape{m, c}, old);
    router_forward(s, logits, tx, tw);
    router_input_gradient(s, dx, td, tw);
    if (m > 0) {
      EXPECT_TRUE(near(on_host<A>(device, logits), reference::linear_forward(size, in_double(x), in_double(w), {}),
                       test::tolerance<A>));
      auto wanted = reference::linear_input_gradient(size, in_double(d), in_double(w));
      for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] += static_cast<double>(old[i]);
      EXPECT_TRUE(near(on_host<T>(device, dx), wanted, test::tolerance<T>));
    }
    const auto product = reference::linear_weight_gradient(size, in_double(d), in_double(x));
    for (float beta : {0.0f, 1.0f, 0.5f})
      for (Accumulation how : {Accumulation::fused, Accumulation::unfused}) {
        auto wanted = product;
        for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] += beta * static_cast<double>(sum[i]);
        const Shape shape{e, c};
        const Gradient dw{beta == 0 ? poisoned<A>(device, shape) : on_device(device, shape, sum), beta};
        router_weight_gradient(s, arena, dw, td, tx, how);
        const double tolerance = how == Accumulation::fused ? test::tolerance<A> : test::tolerance<T>;
        EXPECT_TRUE(near(on_host<A>(device, dw.sum), wanted, tolerance)) << m << "x" << e << "x" << c;
      }
  }
}

TYPED_TEST(RouterProducts, UnfusedGradientRoundsTheProductFirst) {
  using T = TypeParam;
  using A = Accumulator<T>;
  Device device;
  Arena arena = device.arena(Category::activations, 1 << 20);
  const auto sum = uniform<A>(3 * 33, 56);
  const Tensor x = on_device(device, Shape{300, 33}, uniform<T>(300 * 33, 57));
  const Tensor d = on_device(device, Shape{300, 3}, uniform<A>(900, 58));
  const Gradient fused{poisoned<A>(device, {3, 33}), 0}, unfused{on_device(device, Shape{3, 33}, sum), 1};
  router_weight_gradient(device.compute(), arena, fused, d, x, Accumulation::fused);
  router_weight_gradient(device.compute(), arena, unfused, d, x, Accumulation::unfused);
  std::vector<A> wanted = on_host<A>(device, fused.sum);
  for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] = sum[i] + A(T(wanted[i]));
  EXPECT_TRUE(test::same_bits(on_host<A>(device, unfused.sum), wanted));
}

// A gate's product and its gradients, by their formulas.
TYPED_TEST(RouterProducts, GateEqualsItsFormula) {
  using T = TypeParam;
  using A = Accumulator<T>;
  Device device;
  for (std::int64_t m : {1, 7})
    for (std::int64_t n : {1, 33, 72, 513}) {
      SCOPED_TRACE(test::shown(m, n));
      const auto z = uniform<A>(m, 71, -4, 4);
      const auto a = uniform<T>(m * n, 72), dy = uniform<T>(m * n, 73);
      const Tensor logits = on_device(device, Shape{m, 1}, z), answer = on_device(device, Shape{m, n}, a);
      const Tensor up = on_device(device, Shape{m, n}, dy), y = poisoned<T>(device, {m, n});
      const Tensor danswer = poisoned<T>(device, {m, n}), dlogits = poisoned<A>(device, {m, 1});
      gate_forward(device.compute(), y, answer, logits);
      gate_backward(device.compute(),
                    {.danswer = danswer, .dlogits = dlogits, .dy = up, .answer = answer, .logits = logits});
      std::vector<double> wanted, da, dz;
      for (std::size_t i = 0; i < z.size(); ++i) {
        const double s = 1 / (1 + std::exp(-static_cast<double>(z[i])));
        double along = 0;
        for (std::size_t at = i * static_cast<std::size_t>(n); at < (i + 1) * static_cast<std::size_t>(n); ++at) {
          wanted.push_back(s * static_cast<double>(a[at]));
          da.push_back(s * static_cast<double>(dy[at]));
          along += static_cast<double>(a[at]) * static_cast<double>(dy[at]);
        }
        dz.push_back(s * (1 - s) * along);
      }
      EXPECT_TRUE(near(on_host<T>(device, y), wanted, test::tolerance<T>));
      EXPECT_TRUE(near(on_host<T>(device, danswer), da, test::tolerance<T>));
      EXPECT_TRUE(near(on_host<A>(device, dlogits), dz, test::tolerance<A>));
    }
}

}  // namespace
}  // namespace tessera
